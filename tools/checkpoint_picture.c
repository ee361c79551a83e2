/* Picture of a checkpoint's sizes: for each kind of tensors a bar of its raw bytes and one of what is stored. */
#include <inttypes.h>

#include "tools/checkpoint_survey.h"
#include "tools/report.h"

enum { WIDTH = 760, LEFT = 190, RIGHT = 96, TOP = 56, BAR = 14, ROW = 44, LEGEND = 34, MARGIN = 12 };

/* Colours that differ in lightness too. */
static const char *const colours[SURVEY_MODES] = {
    [STRAIT_BLOCK_RAW] = "#8c8c8c",           [STRAIT_BLOCK_CONST] = "#d0d0d0",  [STRAIT_BLOCK_TOP16] = "#c05a00",
    [STRAIT_BLOCK_TOP16_ESCAPES] = "#e08a3c", [STRAIT_BLOCK_TIERED] = "#f0b27a", [STRAIT_BLOCK_BASE] = "#0b5394",
    [STRAIT_BLOCK_SPLIT] = "#3d85c6",         [STRAIT_BLOCK_FP32Z] = "#9fc5e8",  [STRAIT_BLOCK_FP8] = "#6a3d9a",
    [STRAIT_BLOCK_PARTS] = "#2e7d32",         [SURVEY_ROUNDED] = "#ffffff",
};

static const char *colour_of(unsigned mode)
{
    return colours[mode] != NULL ? colours[mode] : "#000000";
}

/* Writes a text with what XML reserves replaced. */
static void put_text(const char *text, FILE *stream)
{
    for (; *text != '\0'; text++) {
        if (*text == '<')
            fputs("&lt;", stream);
        else if (*text == '>')
            fputs("&gt;", stream);
        else if (*text == '&')
            fputs("&amp;", stream);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, stream);
    }
}

static void put_size(uint64_t bytes, FILE *stream)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double size = (double)bytes;
    unsigned unit = 0;
    for (; size >= 1024; unit++)
        size /= 1024;
    fprintf(stream, unit == 0 ? "%.0f %s" : "%.2f %s", size, units[unit]);
}

static void put_bar(double x, int y, double width, const char *colour, FILE *stream)
{
    if (width > 0)
        fprintf(stream,
                "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#404040\" "
                "stroke-width=\"0.5\"/>\n",
                x, y, width, (int)BAR, colour);
}

static void put_kind(const struct survey_kind *kind, int y, double per_byte, FILE *stream)
{
    double x = LEFT;
    fprintf(stream, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s %s</text>\n", LEFT - 8, y + BAR, kind->name,
            kind->dtype);
    fprintf(stream, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#606060\">%" PRIu64 " tensor%s</text>\n",
            LEFT - 8, y + 2 * BAR, kind->tensors, kind->tensors == 1 ? "" : "s");
    put_bar(x, y, (double)kind->all.raw * per_byte, "#eeeeee", stream);
    fprintf(stream, "<text x=\"%.2f\" y=\"%d\">", LEFT + (double)kind->all.raw * per_byte + 4, y + BAR - 3);
    put_size(kind->all.raw, stream);
    fputs("</text>\n", stream);
    for (unsigned mode = 0; mode < SURVEY_MODES; mode++) {
        const double width = (double)kind->modes[mode].stored * per_byte;
        put_bar(x, y + BAR, width, colour_of(mode), stream);
        x += width;
    }
    fprintf(stream, "<text x=\"%.2f\" y=\"%d\">", x + 4, y + 2 * BAR - 3);
    put_size(kind->all.stored, stream);
    if (kind->all.stored > 0)
        fprintf(stream, ", %.3f times", ratio_of(kind->all.raw, kind->all.stored));
    else if (kind->modes[SURVEY_ROUNDED].raw > 0)
        fputs(": roundings of other tensors", stream);
    fputs("</text>\n", stream);
}

/* Names the colours that occur. */
static void put_legend(const struct checkpoint_survey *survey, int y, FILE *stream)
{
    int x = LEFT;
    put_bar(x, y, BAR, "#eeeeee", stream);
    fprintf(stream, "<text x=\"%d\" y=\"%d\">raw size</text>\n", x + BAR + 4, y + BAR - 3);
    x += 76;
    for (unsigned mode = 0; mode < SURVEY_MODES; mode++) {
        uint64_t stored = 0;
        for (uint32_t k = 0; k < survey->kind_count; k++)
            stored += survey->kinds[k].modes[mode].stored;
        if (stored == 0)
            continue;
        put_bar(x, y, BAR, colour_of(mode), stream);
        fprintf(stream, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + BAR + 4, y + BAR - 3, survey_mode_name(mode));
        x += 76;
    }
}

void checkpoint_picture(const struct checkpoint_survey *survey, const char *title, FILE *stream)
{
    const int height = TOP + (int)survey->kind_count * ROW + LEGEND + MARGIN;
    uint64_t largest = 1;
    for (uint32_t k = 0; k < survey->kind_count; k++)
        largest = survey->kinds[k].all.raw > largest ? survey->kinds[k].all.raw : largest;
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n<text x=\"%d\" y=\"24\" "
            "font-size=\"14\">",
            (int)WIDTH, height, (int)WIDTH, height, (int)MARGIN);
    put_text(title, stream);
    fputs("</text>\n", stream);
    fprintf(stream,
            "<text x=\"%d\" y=\"42\" fill=\"#606060\">bytes of each kind of tensors: raw, and stored by the "
            "modes of blocks</text>\n",
            (int)MARGIN);
    for (uint32_t k = 0; k < survey->kind_count; k++)
        put_kind(&survey->kinds[k], TOP + (int)k * ROW, (WIDTH - LEFT - RIGHT) / (double)largest, stream);
    put_legend(survey, TOP + (int)survey->kind_count * ROW + MARGIN, stream);
    fputs("</svg>\n", stream);
}
