#include "tools/completion.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/option_table.h"
#include "tools/util.h"

#define KEYS_MAX    32u
#define OPTIONS_MAX 80u

struct entry {
    char name[40], letter, argument[40], values[256], help[160];
};

/* What follows one beginning of the command line: "encode", "bench codec", or "" for a program without commands. */
struct key {
    char text[40], help[100];
    bool files; /* its operands are files */
    struct entry list[OPTIONS_MAX];
    unsigned count;
};

static struct program {
    const char *name;
    struct key keys[KEYS_MAX];
    unsigned count;
} program;

/* ---- Collecting -------------------------------------------------------------------------------------------------- */

static struct key *add_key(const char *text, const char *help, bool files)
{
    struct key *key = &program.keys[program.count];
    if (program.count == KEYS_MAX)
        return NULL;
    program.count++;
    snprintf(key->text, sizeof(key->text), "%s", text);
    snprintf(key->help, sizeof(key->help), "%s", help);
    key->files = files;
    return key;
}

/* Adds an option once: with and without --device benches have many in common. */
static void add_option(void *arg, const struct option_listed *option)
{
    struct key *key = arg;
    for (unsigned i = 0; i < key->count; i++)
        if (strcmp(key->list[i].name, option->name) == 0)
            return;
    if (key->count == OPTIONS_MAX)
        return;
    struct entry *entry = &key->list[key->count++];
    snprintf(entry->name, sizeof(entry->name), "%s", option->name);
    snprintf(entry->argument, sizeof(entry->argument), "%s", option->argument != NULL ? option->argument : "");
    snprintf(entry->values, sizeof(entry->values), "%s", option->values != NULL ? option->values : "");
    snprintf(entry->help, sizeof(entry->help), "%s", option->help);
    entry->letter = option->letter;
}

/* Lets the command list its options; its `part` NULL: it has none. */
static void collect(const struct subcommand *command, const char *text, const char *part)
{
    struct key *key = add_key(text, command->help, command->files);
    char *argv[] = {(char *)command->name, (char *)part, NULL},
         *with_device[] = {(char *)command->name, (char *)part, "--device", NULL};
    if (key == NULL)
        return;
    options_listen(add_option, key);
    (void)command->run(part != NULL ? 2 : 1, argv);
    if (part != NULL) /* a bench has more options then */
        (void)command->run(3, with_device);
    options_listen(NULL, NULL);
}

static void collect_strait(const struct subcommand *commands, unsigned count)
{
    char text[40];
    for (unsigned i = 0; i < count; i++) {
        if (commands[i].parts == NULL)
            collect(&commands[i], commands[i].name, NULL);
        else
            (void)add_key(commands[i].name, commands[i].help, false);
        for (unsigned p = 0; commands[i].parts != NULL && commands[i].parts[p] != NULL; p++) {
            snprintf(text, sizeof(text), "%s %s", commands[i].name, commands[i].parts[p]);
            collect(&commands[i], text, commands[i].parts[p]);
        }
    }
}

static void collect_straitd(void)
{
    static const char *const arguments[] = {
        [OPTION_TEXT] = "FILE",   [OPTION_LISTEN] = "ADDRESS", [OPTION_ADVERTISE] = "ADDRESS",
        [OPTION_ONE_OF] = "NAME", [OPTION_LIST] = "LIST",      [OPTION_SWITCH] = NULL,
        [OPTION_COUNT] = "COUNT", [OPTION_BYTES] = "BYTES",    [OPTION_DURATION] = "TIME"};
    struct key *key = add_key("", "", false);
    for (size_t i = 0; i < option_command_count; i++)
        add_option(key, &(struct option_listed){.name = option_commands[i].name,
                                                .letter = strcmp(option_commands[i].name, "help") == 0 ? 'h' : 0,
                                                .argument = option_commands[i].argument,
                                                .help = option_commands[i].help});
    for (size_t i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        char values[256] = "", help[160];
        snprintf(values, sizeof(values), "%s", row->choices != NULL ? row->choices : "");
        for (char *comma = values; (comma = strchr(comma, ',')) != NULL;)
            *comma = ' ';
        snprintf(help, sizeof(help), "%.*s", (int)strcspn(row->help, ".:;"), row->help); /* its first sentence */
        add_option(key, &(struct option_listed){
                            .name = row->name, .argument = arguments[row->kind], .values = values, .help = help});
    }
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static bool takes_files(const struct entry *entry)
{
    static const char *const files[] = {"FILE", "SET", "PATH"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (strcmp(entry->argument, files[i]) == 0)
            return true;
    return false;
}

/* Prints a text within single quotes of a shell, without the characters that mean something to _arguments. */
static void put_text(const char *text)
{
    for (; *text != '\0'; text++)
        if (strchr("'[]:\\`$\"", *text) == NULL && (unsigned char)*text >= ' ')
            putchar(*text);
}

/* The part of a command: "codec" of "bench codec". NULL: it has none. */
static const char *part_of(const struct key *key)
{
    const char *space = strchr(key->text, ' ');
    return space != NULL ? space + 1 : NULL;
}

static bool has_parts(const struct key *key)
{
    const size_t size = strlen(key->text);
    for (unsigned i = 0; i < program.count; i++)
        if (strncmp(program.keys[i].text, key->text, size) == 0 && program.keys[i].text[size] == ' ')
            return true;
    return false;
}

static bool is_program(const struct key *key)
{
    return key->text[0] == '\0';
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void bash_words(const struct key *of)
{
    const size_t size = of != NULL ? strlen(of->text) : 0;
    for (unsigned i = 0; i < program.count; i++) {
        const struct key *key = &program.keys[i];
        if (of == NULL && part_of(key) == NULL)
            printf("%s ", key->text);
        else if (of != NULL && strncmp(key->text, of->text, size) == 0 && part_of(key) != NULL)
            printf("%s ", part_of(key));
    }
}

static void bash_arguments(const struct key *key)
{
    for (unsigned i = 0; i < key->count; i++) {
        const struct entry *entry = &key->list[i];
        if (entry->argument[0] == '\0')
            continue;
        printf("    '%s --%s'", key->text, entry->name);
        if (entry->letter != 0)
            printf("|'%s -%c'", key->text, entry->letter);
        if (entry->values[0] != '\0')
            printf(") COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", entry->values);
        else if (takes_files(entry))
            printf(") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n");
        else
            printf(") return ;;\n");
    }
}

static void bash_options(const struct key *key)
{
    printf("    '%s') options='", key->text);
    for (unsigned i = 0; i < key->count; i++) {
        printf("--%s ", key->list[i].name);
        if (key->list[i].letter != 0)
            printf("-%c ", key->list[i].letter);
    }
    printf("'%s ;;\n", key->files ? " files=1" : "");
}

static void print_bash(void)
{
    printf("# bash completion of %s, made by `strait completion bash`.\n_%s() {\n", program.name, program.name);
    printf("    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} key='' options='' files=''\n"
           "    COMPREPLY=()\n"
           "    # bash takes --name=value for three words.\n"
           "    if [ \"$cur\" = '=' ]; then cur=''\n"
           "    elif [ \"$prev\" = '=' ] && [ \"$COMP_CWORD\" -ge 2 ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n");
    if (!is_program(&program.keys[0])) {
        printf("    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W '");
        bash_words(NULL);
        printf("--help --version' -- \"$cur\"))\n        return\n    fi\n    key=${COMP_WORDS[1]}\n");
    }
    for (unsigned i = 0; i < program.count; i++)
        if (has_parts(&program.keys[i]) && !is_program(&program.keys[i])) {
            printf("    if [ \"$key\" = %s ]; then\n        if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                   "            COMPREPLY=($(compgen -W '",
                   program.keys[i].text);
            bash_words(&program.keys[i]);
            printf("--help' -- \"$cur\"))\n            return\n        fi\n"
                   "        key=\"$key ${COMP_WORDS[2]}\"\n    fi\n");
        }
    printf("    case \"$key $prev\" in\n");
    for (unsigned i = 0; i < program.count; i++)
        bash_arguments(&program.keys[i]);
    printf("    esac\n    case \"$key\" in\n");
    for (unsigned i = 0; i < program.count; i++)
        bash_options(&program.keys[i]);
    printf("    esac\n"
           "    case \"$cur\" in\n"
           "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
           "    *) [ -z \"$files\" ] || COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
           "    esac\n}\ncomplete -o filenames -F _%s %s\n",
           program.name, program.name);
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

static void zsh_argument(const struct entry *entry)
{
    if (entry->argument[0] == '\0')
        return;
    putchar(':');
    put_text(entry->argument);
    if (entry->values[0] != '\0')
        printf(":(%s)", entry->values);
    else
        printf(takes_files(entry) ? ":_files" : ": ");
}

static void zsh_options(const struct key *key)
{
    printf("_arguments -s");
    for (unsigned i = 0; i < key->count; i++) {
        const struct entry *entry = &key->list[i];
        const char *takes = entry->argument[0] != '\0' ? "=" : "";
        if (entry->letter != 0) {
            printf(" \\\n            '*-%c%s[", entry->letter, entry->argument[0] != '\0' ? "+" : "");
            put_text(entry->help);
            putchar(']');
            zsh_argument(entry);
            putchar('\'');
        }
        printf(" \\\n            '*--%s%s[", entry->name, takes);
        put_text(entry->help);
        putchar(']');
        zsh_argument(entry);
        putchar('\'');
    }
    printf("%s\n", key->files ? " \\\n            '*:file:_files'" : "");
}

static void zsh_words(const char *of, const char *indent)
{
    const size_t size = strlen(of);
    printf("%slocal -a words_there=(", indent);
    for (unsigned i = 0; i < program.count; i++) {
        const struct key *key = &program.keys[i];
        const bool shown = size == 0 ? part_of(key) == NULL : part_of(key) != NULL && strncmp(key->text, of, size) == 0;
        if (!shown)
            continue;
        printf("\n%s    '%s:", indent, size == 0 ? key->text : part_of(key));
        put_text(size == 0 ? key->help : "a bench");
        putchar('\'');
    }
    printf(")\n%s_describe 'command' words_there\n", indent);
}

/* A case for each word; that of a command with parts has one for each of them. */
static void zsh_cases(void)
{
    for (unsigned i = 0; i < program.count; i++) {
        const struct key *key = &program.keys[i];
        const bool parts = has_parts(key);
        if (part_of(key) != NULL)
            continue;
        printf("    %s)\n", key->text);
        if (!parts) {
            printf("        shift words; (( CURRENT-- ))\n        ");
            zsh_options(key);
        } else {
            printf("        if (( CURRENT == 3 )); then\n");
            zsh_words(key->text, "            ");
            printf("            return\n        fi\n        case $words[3] in\n");
            for (unsigned p = 0; p < program.count; p++)
                if (part_of(&program.keys[p]) != NULL &&
                    strncmp(program.keys[p].text, key->text, strlen(key->text)) == 0) {
                    printf("        %s)\n            shift 2 words; (( CURRENT -= 2 ))\n            ",
                           part_of(&program.keys[p]));
                    zsh_options(&program.keys[p]);
                    printf("            ;;\n");
                }
            printf("        esac\n");
        }
        printf("        ;;\n");
    }
}

static void print_zsh(void)
{
    printf("#compdef %s\n# Made by `strait completion zsh`.\n_%s() {\n", program.name, program.name);
    if (is_program(&program.keys[0])) {
        printf("    ");
        zsh_options(&program.keys[0]);
    } else {
        printf("    if (( CURRENT == 2 )); then\n");
        zsh_words("", "        ");
        printf("        compadd -- --help --version\n        return\n    fi\n    case $words[2] in\n");
        zsh_cases();
        printf("    esac\n");
    }
    printf("}\n_%s \"$@\"\n", program.name);
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void fish_begin(const struct key *key)
{
    const char *part = part_of(key);
    printf("complete -c %s", program.name);
    if (is_program(key))
        return;
    printf(" -n '__fish_seen_subcommand_from %.*s", (int)strcspn(key->text, " "), key->text);
    if (part != NULL)
        printf("; and __fish_seen_subcommand_from %s", part);
    putchar('\'');
}

static void fish_help(const char *help)
{
    printf(" -d '");
    put_text(help);
    printf("'\n");
}

static void fish_option(const struct key *key, const struct entry *entry)
{
    fish_begin(key);
    printf(" -l %s", entry->name);
    if (entry->letter != 0)
        printf(" -s %c", entry->letter);
    if (entry->argument[0] != '\0' && entry->values[0] != '\0')
        printf(" -x -a '%s'", entry->values);
    else if (entry->argument[0] != '\0')
        printf(takes_files(entry) ? " -r -F" : " -x");
    fish_help(entry->help);
}

static void fish_key(const struct key *key)
{
    const char *part = part_of(key);
    if (part != NULL) {
        printf("complete -c %s -n '__fish_seen_subcommand_from %.*s' -a %s", program.name, (int)strcspn(key->text, " "),
               key->text, part);
        fish_help("a bench");
    } else if (!is_program(key)) {
        printf("complete -c %s -n __fish_use_subcommand -a %s", program.name, key->text);
        fish_help(key->help);
    }
    if (key->files) {
        fish_begin(key);
        printf(" -F\n");
    }
    for (unsigned i = 0; i < key->count; i++)
        fish_option(key, &key->list[i]);
}

static void print_fish(void)
{
    printf("# fish completion of %s, made by `strait completion fish`.\ncomplete -c %s -f\n", program.name,
           program.name);
    if (!is_program(&program.keys[0]))
        printf("complete -c %s -n __fish_use_subcommand -l help -s h -d 'print this'\n"
               "complete -c %s -n __fish_use_subcommand -l version -d 'print the version'\n",
               program.name, program.name);
    for (unsigned i = 0; i < program.count; i++)
        fish_key(&program.keys[i]);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

int completion_run(const struct subcommand *commands, unsigned count, int argc, char **argv)
{
    static char name[] = "strait completion";
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static void (*const prints[])(void) = {print_bash, print_zsh, print_fish};
    static char strait[] = "strait";
    char *shell = argc > 1 ? argv[1] : NULL, *of = argc > 2 ? argv[2] : strait;
    command_begin(argv, name);
    if (shell == NULL || argc > 3 || (strcmp(of, "strait") != 0 && strcmp(of, "straitd") != 0)) {
        fputs("usage: strait completion bash|zsh|fish [strait|straitd]\n", stderr);
        return EXIT_CODE_USAGE;
    }
    unsigned index;
    if (!option_name("SHELL", shell, shells, sizeof(shells) / sizeof(shells[0]), &index))
        return EXIT_CODE_USAGE;
    program.name = of;
    if (strcmp(of, "straitd") == 0)
        collect_straitd();
    else
        collect_strait(commands, count);
    prints[index]();
    return EXIT_CODE_OK;
}
