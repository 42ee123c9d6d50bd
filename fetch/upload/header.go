package upload

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// badRequest returns the error for a request with an invalid header.
func badRequest(format string, args ...any) error {
	return httperror.New(http.StatusBadRequest, format, args...)
}

// maxMetadata is the maximum length of an Upload-Metadata header.
const maxMetadata = 4 << 10

// metadata describes an upload when it is created.
type metadata struct {
	Name        string       // of the image
	Digest      ident.Digest // the digest that the image must have; zero: not given
	Fingerprint string       // the client recognizes its file by it
	Data        int64        // upper bound of the bytes in chunks that are not all zeros; 0: not given
	text        string       // the header as received
}

// parseMetadata parses an Upload-Metadata header: a comma-separated list of keys, each with an
// optional value in base64. text contains unknown keys too.
func parseMetadata(text string) (metadata, error) {
	if len(text) > maxMetadata {
		return metadata{}, badRequest("Upload-Metadata has %d bytes: at most %d are allowed", len(text), maxMetadata)
	}
	m := metadata{text: text}
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ",") {
		key, encoded, _ := strings.Cut(strings.TrimSpace(pair), " ")
		if key == "" && strings.TrimSpace(text) == "" {
			continue
		}
		value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		switch {
		case key == "", strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
			return metadata{}, badRequest("Upload-Metadata is not a list of keys with values in base64")
		case err != nil:
			return metadata{}, badRequest("Upload-Metadata: the value of %s is not base64", key)
		case seen[key]:
			return metadata{}, badRequest("Upload-Metadata: %s occurs twice", key)
		}
		seen[key] = true
		if err := m.set(key, string(value)); err != nil {
			return metadata{}, badRequest("%v", err)
		}
	}
	return m, nil
}

func (m *metadata) set(key, value string) error {
	switch key {
	case "name":
		m.Name = value
		return ident.CheckName(value)
	case "fingerprint":
		m.Fingerprint = value
	case "data":
		var err error
		m.Data, err = parseCount("Upload-Metadata: data", value)
		return err
	case "checksum", "sha512", "sha256":
		if key != "checksum" && !strings.HasPrefix(value, key+":") {
			value = key + ":" + value
		}
		digest, err := ident.ParseDigest(value)
		if err != nil {
			return fmt.Errorf("Upload-Metadata: %s: %w", key, err)
		}
		if !m.Digest.IsZero() && m.Digest != digest {
			return errors.New("Upload-Metadata contains two checksums, but only one is allowed")
		}
		m.Digest = digest
	}
	return nil
}

// header returns the value of an Upload-Metadata header.
func (m metadata) header() string {
	var pairs []string
	add := func(key, value string) {
		if value != "" {
			pairs = append(pairs, key+" "+base64.StdEncoding.EncodeToString([]byte(value)))
		}
	}
	add("name", m.Name)
	add("checksum", m.Digest.String())
	add("fingerprint", m.Fingerprint)
	if m.Data > 0 {
		add("data", strconv.FormatInt(m.Data, 10))
	}
	return strings.Join(pairs, ",")
}

// checksumAlgorithms are the algorithms for Upload-Checksum. tus requires sha1.
const checksumAlgorithms = "sha1,sha256,sha512"

var algorithms = map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}

// parseChecksum parses an Upload-Checksum header. The function matches reports whether a body has this checksum.
func parseChecksum(text string) (matches func(body []byte) bool, err error) {
	algorithm, encoded, _ := strings.Cut(text, " ")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	newHash, known := algorithms[algorithm]
	switch {
	case !known:
		return nil, badRequest("Upload-Checksum has an unknown algorithm: use one of %s", checksumAlgorithms)
	case err != nil || len(sum) != newHash().Size():
		return nil, badRequest("Upload-Checksum is not a checksum in base64")
	}
	return func(body []byte) bool {
		h := newHash()
		h.Write(body)
		return bytes.Equal(h.Sum(nil), sum)
	}, nil
}

// parseCount parses a header with a number of bytes.
func parseCount(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || text[0] < '0' {
		return 0, badRequest("%s must be a number of bytes", name)
	}
	return n, nil
}

// Zeros need no space on the network and on the disk, but each of them is hashed. Therefore the length
// of an image is limited.
const (
	// maxLength is the size of the largest virtual disk that this program accepts.
	maxLength = 64 << 40
	// maxDeferred is the limit while the client has not sent the length. It is the default of maxSize,
	// the limit of downloads.
	maxDeferred = 1 << 40
)

// checkLength returns an error if an image cannot have n bytes.
func checkLength(n int64) error {
	if n > maxLength {
		return fmt.Errorf("an image cannot have %d bytes: at most 64 TiB are possible", n)
	}
	return disk.CheckSize(n)
}
