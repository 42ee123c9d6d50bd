package fetch

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"
	"golang.org/x/net/http/httpguts"

	"github.com/seed-26586806/backing-image-manager/internal/smallfile"
)

// credentials is the content of one folder below SecretsDir, for example of a mounted
// Kubernetes secret. Its files:
//
//	username, password     basic authentication
//	token                  bearer authentication
//	headers                lines "Name: value", sent unchanged
//	tls.crt, tls.key       client certificate, PEM
//	ca.crt                 certificate authorities to trust in addition to those of the system, PEM
//	hosts                  lines "host" or "host:port": other servers (mirrors) that may receive these credentials
//	access-key-id, secret-access-key, session-token, endpoint, region    S3
//	virtual-hosted-style   S3: "true" if the host name of a request contains the bucket
//
// The secret of a Longhorn backup target can be used unchanged. For S3 it has AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_ENDPOINTS, AWS_CERT (used as ca.crt), VIRTUAL_HOSTED_STYLE, HTTP_PROXY, HTTPS_PROXY
// and NO_PROXY. The secret of a DataVolume of CDI can be used, too: its accessKeyId and secretKey are the keys of
// S3, and the user and password of HTTP. Other files may belong to other programs: they are ignored with a warning.
type credentials struct {
	files       map[string]string
	headers     http.Header
	certificate *tls.Certificate
	roots       *x509.CertPool // nil: those of the system
	hosts       map[string]bool
}

var credentialFiles = []string{
	"username", "password", "token", "headers", "tls.crt", "tls.key", "ca.crt", "hosts",
	"access-key-id", "secret-access-key", "session-token", "endpoint", "region", "virtual-hosted-style",
}

// aliases maps the file names of secrets of Longhorn and CDI to the file names of this package.
var aliases = map[string][]string{
	"AWS_ACCESS_KEY_ID": {"access-key-id"}, "AWS_SECRET_ACCESS_KEY": {"secret-access-key"},
	"AWS_ENDPOINTS": {"endpoint"}, "AWS_CERT": {"ca.crt"}, "VIRTUAL_HOSTED_STYLE": {"virtual-hosted-style"},
	"HTTP_PROXY": {"HTTP_PROXY"}, "HTTPS_PROXY": {"HTTPS_PROXY"}, "NO_PROXY": {"NO_PROXY"},
	"accessKeyId": {"access-key-id", "username"}, "secretKey": {"secret-access-key", "password"},
}

// maxSecretFile is the maximum size of a file of a secret, as in Kubernetes. A bundle of all public
// authorities has 200 KiB.
const maxSecretFile = 1 << 20

// credentials reads the folder again for each transfer, so that a changed secret is used in the next
// attempt. Its errors never contain the content of a file.
func (c *Client) credentials(name string) (*credentials, error) {
	creds := &credentials{files: map[string]string{}, headers: http.Header{}, hosts: map[string]bool{}}
	if name == "" {
		return creds, nil
	}
	if c.SecretsDir == "" {
		return nil, Errorf(BadConfig, "credentials %q are declared, but no secrets directory is given: name it with --secrets-dir", name)
	}
	var unknown []string
	files, err := ReadSecret(c.SecretsDir, name, func(file string) bool {
		if aliases[file] != nil || slices.Contains(credentialFiles, file) {
			return true
		}
		unknown = append(unknown, file)
		return false
	})
	if err == nil {
		err = creds.addFiles(files)
	}
	if err == nil {
		err = creds.parse()
	}
	if err != nil {
		return nil, Errorf(BadConfig, "credentials %q: %w", name, err)
	}
	if len(unknown) > 0 && c.Warn != nil {
		c.Warn(fmt.Sprintf("credentials %q: files that are not used: %.200q (known files: %s)", name, unknown, strings.Join(credentialFiles, ", ")))
	}
	return creds, nil
}

// ReadSecret reads the files of a secret: a folder below dir, for example a mounted Kubernetes
// secret. It reads the files for which want returns true, and ignores hidden files. Its errors never
// contain the content of a file.
func ReadSecret(dir, name string, want func(file string) bool) (map[string][]byte, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return nil, errors.New("use the name of one folder")
	}
	// The files of a mounted secret are symbolic links to a hidden folder beside them. os.Root follows
	// these links, but no link that leaves the secrets directory.
	secrets, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open secrets directory: %w", err)
	}
	defer secrets.Close()
	folder, err := secrets.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no such folder in the secrets directory: create it, or declare another name")
	}
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	defer folder.Close()
	entries, err := fs.ReadDir(folder.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		file := entry.Name()
		if strings.HasPrefix(file, ".") || !want(file) {
			continue
		}
		if files[file], err = readSecretFile(folder, file); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func readSecretFile(folder *os.Root, name string) ([]byte, error) {
	f, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe must not block
	if err != nil {
		return nil, fmt.Errorf("open file: %w", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close() // it was not read
		return nil, fmt.Errorf("%q is not a regular file", name)
	}
	return smallfile.Read(f, maxSecretFile)
}

// addFiles stores the files under the names of this package. Secrets of Longhorn contain empty files
// for values that are not set.
func (c *credentials) addFiles(files map[string][]byte) error {
	if len(files) == 0 {
		return fmt.Errorf("the folder has no file that is used: add files named %s", strings.Join(credentialFiles, ", "))
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		content := string(bytes.TrimSpace(files[file]))
		names, isAlias := aliases[file]
		if isAlias && content == "" {
			continue
		}
		if !isAlias {
			names = []string{file}
		}
		for _, name := range names {
			if _, twice := c.files[name]; twice {
				return fmt.Errorf("file %q also exists under the name that Longhorn or CDI gives it: keep only one of the two", name)
			}
			c.files[name] = content
		}
	}
	return nil
}

// parse checks that the files are consistent, and prepares the headers and the TLS configuration.
func (c *credentials) parse() error {
	for _, pair := range [][2]string{{"username", "password"}, {"tls.crt", "tls.key"}, {"access-key-id", "secret-access-key"}} {
		_, first := c.files[pair[0]]
		_, second := c.files[pair[1]]
		if first != second {
			return fmt.Errorf("files %q and %q must exist together: one is missing", pair[0], pair[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		if c.files[name] == "" && name != "password" {
			return fmt.Errorf("file %q is empty: write its value, or remove it", name)
		}
	}
	if v := c.files["virtual-hosted-style"]; v != "" && v != "true" && v != "false" {
		return errors.New("file \"virtual-hosted-style\" must contain \"true\" or \"false\"")
	}
	return errors.Join(c.parseTLS(), c.parseHeaders(), c.parseHosts())
}

// endpoint returns the S3 server for addresses that contain no server.
func (c *credentials) endpoint() (*url.URL, error) {
	text := cmp.Or(c.files["endpoint"], "https://s3.amazonaws.com")
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	e, err := url.Parse(text)
	if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Hostname() == "" || e.User != nil || strings.Trim(e.Path, "/") != "" || e.RawQuery != "" {
		return nil, Errorf(BadConfig, "file \"endpoint\" of the credentials is not the address of a server: write https://HOST or https://HOST:PORT")
	}
	return &url.URL{Scheme: e.Scheme, Host: e.Host}, nil
}

// bucketLookup returns whether requests contain the bucket name in the host name or in the path.
func (c *credentials) bucketLookup() minio.BucketLookupType {
	if c.files["virtual-hosted-style"] == "true" {
		return minio.BucketLookupDNS
	}
	return minio.BucketLookupAuto // in the host name for Amazon and some other known servers, otherwise in the path
}

func (c *credentials) parseTLS() error {
	if crt := c.files["tls.crt"]; crt != "" {
		pair, err := tls.X509KeyPair([]byte(crt), []byte(c.files["tls.key"]))
		if err != nil {
			return errors.New("files \"tls.crt\" and \"tls.key\" are not a matching pair in PEM")
		}
		c.certificate = &pair
	}
	if ca := c.files["ca.crt"]; ca != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return fmt.Errorf("read the system's certificate authorities: %w", err)
		}
		if !roots.AppendCertsFromPEM([]byte(ca)) {
			return errors.New("file \"ca.crt\" contains no certificate in PEM")
		}
		c.roots = roots
	}
	return nil
}

func (c *credentials) parseHeaders() error {
	for _, line := range lines(c.files["headers"]) {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("file \"headers\" has a line that is not \"Name: value\"")
		}
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Range", "If-Range", "Accept-Encoding", "Connection", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade":
			return fmt.Errorf("file \"headers\": header %s is reserved: remove it", name)
		}
		c.headers.Add(name, value)
	}
	token, hasToken := c.files["token"]
	user, hasUser := c.files["username"]
	if hasToken && hasUser || (hasToken || hasUser) && c.headers.Get("Authorization") != "" {
		return errors.New("more than one of username, token and an Authorization header is given: keep one of them")
	}
	switch {
	case hasToken && !httpguts.ValidHeaderFieldValue(token):
		return errors.New("file \"token\" contains characters that a header cannot contain")
	case hasToken:
		c.headers.Set("Authorization", "Bearer "+token)
	case hasUser:
		pair := user + ":" + c.files["password"]
		c.headers.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)))
	}
	return nil
}

func (c *credentials) parseHosts() error {
	for _, host := range lines(c.files["hosts"]) {
		if u, err := url.Parse("https://" + host); err != nil || u.Host != host || u.Hostname() == "" {
			return errors.New("file \"hosts\" has a line that is not HOST or HOST:PORT")
		}
		c.hosts[host] = true
	}
	return nil
}

// hasHeaders reports whether requests have secrets in their headers.
func (c *credentials) hasHeaders() bool { return len(c.headers) > 0 }

// setHeaders adds the secrets to the headers of a request.
func (c *credentials) setHeaders(h http.Header) {
	for name, values := range c.headers {
		h[name] = values
	}
}

// lines returns the lines of s that are not empty and not comments.
func lines(s string) []string {
	var l []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			l = append(l, line)
		}
	}
	return l
}
