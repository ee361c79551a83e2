/* STRAIT_API marks what the shared libraries export; everything else is hidden. */
#ifndef STRAIT_EXPORT_H
#define STRAIT_EXPORT_H

#define STRAIT_API __attribute__((visibility("default")))

#endif
