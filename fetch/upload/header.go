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
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// maxMetadata bounds what is kept of what a sender says about an upload.
const maxMetadata = 4 << 10

// metadata is what a sender says about an upload when it begins.
type metadata struct {
	Name        string      // of the image
	Digest      disk.Digest // that the whole has to have; zero: none was given
	Fingerprint string      // by which the sender knows its file again
	Data        int64       // bytes of chunks that are not all zero, at most; 0: not said
	text        string      // the header as it came
}

// parseMetadata reads an Upload-Metadata header: keys, each with a value in base64
// or none, between commas. Keys that mean nothing here are kept in the text.
func parseMetadata(text string) (metadata, error) {
	if len(text) > maxMetadata {
		return metadata{}, fmt.Errorf("Upload-Metadata has %d bytes, at most %d are kept", len(text), maxMetadata)
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
			return metadata{}, errors.New("Upload-Metadata is not a list of keys with values in base64")
		case err != nil:
			return metadata{}, fmt.Errorf("Upload-Metadata: the value of %s is not base64", key)
		case seen[key]:
			return metadata{}, fmt.Errorf("Upload-Metadata: %s is there twice", key)
		}
		seen[key] = true
		if err := m.set(key, string(value)); err != nil {
			return metadata{}, err
		}
	}
	return m, nil
}

func (m *metadata) set(key, value string) error {
	switch key {
	case "name":
		m.Name = value
		return disk.CheckName(value)
	case "fingerprint":
		m.Fingerprint = value
	case "data":
		n, err := parseCount("Upload-Metadata: data", value)
		if err != nil {
			return err
		}
		m.Data = n
	case "checksum", "sha512", "sha256":
		if key != "checksum" && !strings.HasPrefix(value, key+":") {
			value = key + ":" + value
		}
		digest, err := disk.ParseDigest(value)
		if err != nil {
			return fmt.Errorf("Upload-Metadata: %s: %w", key, err)
		}
		if !m.Digest.IsZero() && m.Digest != digest {
			return errors.New("Upload-Metadata gives two checksums: give one")
		}
		m.Digest = digest
	}
	return nil
}

// header returns the text of an Upload-Metadata header.
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

// checksumAlgorithms are what a body may be checked with. tus asks for sha1.
const checksumAlgorithms = "sha1,sha256,sha512"

var algorithms = map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}

// bodyChecksum is what the body of one request has to have.
type bodyChecksum struct {
	algorithm string
	sum       []byte
}

// parseChecksum reads an Upload-Checksum header.
func parseChecksum(text string) (bodyChecksum, error) {
	algorithm, encoded, _ := strings.Cut(text, " ")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	h, known := algorithms[algorithm]
	switch {
	case !known:
		return bodyChecksum{}, errors.New("Upload-Checksum is of an algorithm that is not known here: there are " + checksumAlgorithms)
	case err != nil || len(sum) != h().Size():
		return bodyChecksum{}, errors.New("Upload-Checksum is not a checksum in base64")
	}
	return bodyChecksum{algorithm, sum}, nil
}

func (s bodyChecksum) matches(body []byte) bool {
	h := algorithms[s.algorithm]()
	h.Write(body)
	return bytes.Equal(h.Sum(nil), s.sum)
}

// parseCount reads a header that is a number of bytes.
func parseCount(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || text[0] < '0' {
		return 0, fmt.Errorf("%s has to be a number of bytes", name)
	}
	return n, nil
}

// checkLength says why an image cannot have so many bytes.
func checkLength(n int64) error {
	if n == 0 || n%512 != 0 {
		return fmt.Errorf("an image of %d bytes cannot be: its size has to be a multiple of 512, and more than 0", n)
	}
	return nil
}
