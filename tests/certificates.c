#include "tests/certificates.h"

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include "tests/support.h"

static void add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    require(extension != NULL);
    require(X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

/* `issuer` NULL: signs itself, as a CA. */
static X509 *certificate_make(EVP_PKEY *key, const struct authority *issuer, const char *name, const char *names,
                              long seconds)
{
    static long serial;
    X509 *made = X509_new();
    X509_NAME *subject = X509_get_subject_name(made);
    require(X509_set_version(made, 2) == 1);
    ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), seconds);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(made, issuer != NULL ? X509_get_subject_name(issuer->certificate) : subject);
    X509_set_pubkey(made, key);
    add_extension(made, issuer != NULL ? issuer->certificate : made, NID_basic_constraints,
                  issuer != NULL ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (names != NULL)
        add_extension(made, issuer->certificate, NID_subject_alt_name, names);
    require(X509_sign(made, issuer != NULL ? issuer->key : key, EVP_sha256()) > 0);
    return made;
}

struct authority authority_make(const char *name)
{
    struct authority made = {.key = EVP_EC_gen("P-256")};
    made.certificate = certificate_make(made.key, NULL, name, NULL, 3600);
    return made;
}

void authority_free(struct authority *authority)
{
    X509_free(authority->certificate);
    EVP_PKEY_free(authority->key);
}

static FILE *open_to_write(const char *path, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, mode);
    require(fd >= 0);
    return fdopen(fd, "w");
}

static void write_certificates(const char *path, X509 *certificate, int copies)
{
    FILE *file = open_to_write(path, 0644);
    for (int i = 0; i < copies; i++)
        require(PEM_write_X509(file, certificate) == 1);
    fclose(file);
}

void certificate_write(const struct authority *issuer, const char *names, long seconds, int copies,
                       const char *certificate_path, const char *key_path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *made = certificate_make(key, issuer, "node", names, seconds);
    write_certificates(certificate_path, made, copies);
    FILE *file = open_to_write(key_path, 0600);
    require(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
    X509_free(made);
    EVP_PKEY_free(key);
}

void authority_write(const struct authority *authority, const char *path)
{
    write_certificates(path, authority->certificate, 1);
}
