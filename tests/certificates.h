/* Certificates for tests of TLS: a CA, what it signs, and both as files in PEM. */
#ifndef STRAIT_TESTS_CERTIFICATES_H
#define STRAIT_TESTS_CERTIFICATES_H

#include <openssl/evp.h>
#include <openssl/x509.h>

struct authority {
    EVP_PKEY *key;
    X509 *certificate;
};

/* Valid for an hour. authority_free ends it. */
struct authority authority_make(const char *name);
void authority_free(struct authority *authority);

/* Writes a key of its own and a certificate of `issuer` for `names`, as in "IP:127.0.0.1,DNS:strait", valid from an
 * hour ago for `seconds` from now; the certificate so many times. */
void certificate_write(const struct authority *issuer, const char *names, long seconds, int copies,
                       const char *certificate_path, const char *key_path);
void authority_write(const struct authority *authority, const char *path);

#endif
