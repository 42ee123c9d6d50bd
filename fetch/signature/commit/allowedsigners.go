package commit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// allowedSigner is a line of an allowed signers file.
type allowedSigner struct {
	principals    string // as in the file: patterns, separated by commas
	key           ssh.PublicKey
	namespaces    []string // none: all
	after, before time.Time
}

// parseAllowedSigners parses the file. ssh-keygen(1) has the format in the section ALLOWED SIGNERS. A line that cannot be
// read is an error of the whole file, because the line may restrict a key. Lines with cert-authority are errors, too:
// certificates are not supported.
func parseAllowedSigners(b []byte) ([]allowedSigner, error) {
	var signers []allowedSigner
	n := 0
	for line := range bytes.Lines(b) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		s, err := parseAllowedSigner(text)
		if err != nil {
			return nil, signature.Errorf(signature.BadKeyFile, "%s:%d: %v", allowedSigners, n, err)
		}
		signers = append(signers, s)
	}
	return signers, nil
}

// parseAllowedSigner parses "principals [options] keytype base64 [comment]".
func parseAllowedSigner(line string) (s allowedSigner, err error) {
	fields := splitQuoted(line)
	if len(fields) < 3 {
		return s, errors.New("a line must be PRINCIPALS [OPTIONS] KEYTYPE KEY")
	}
	s.principals = strings.Trim(fields[0], `"`)
	fields = fields[1:]
	if !isKeyType(fields[0]) {
		if err := s.parseOptions(fields[0]); err != nil {
			return s, err
		}
		fields = fields[1:]
	}
	if len(fields) < 2 || !isKeyType(fields[0]) {
		return s, errors.New("the type of the key is missing or unknown")
	}
	raw, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return s, errors.New("the key is not base64")
	}
	if s.key, err = ssh.ParsePublicKey(raw); err != nil || s.key.Type() != fields[0] {
		return s, errors.New("the key is damaged, or of another type")
	}
	return s, nil
}

// isKeyType reports whether a field is a type of keys. Certificates and DSA keys are not accepted.
func isKeyType(field string) bool {
	switch field {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoRSA, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return true
	}
	return false
}

// splitQuoted splits at blanks that are not inside double quotes.
func splitQuoted(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t')
	})
}

// parseOptions parses options that are separated by commas. Names are not case-sensitive.
func (s *allowedSigner) parseOptions(field string) (err error) {
	quoted := false
	options := strings.FieldsFunc(field, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && r == ','
	})
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		value, ok := unquote(value)
		name = strings.ToLower(name)
		switch {
		case name == "cert-authority":
			return errors.New("cert-authority is not supported: list the keys themselves")
		case !ok:
			return errors.New("the value of the option " + name + " is not in double quotes")
		case name == "namespaces" && s.namespaces == nil:
			s.namespaces = strings.Split(value, ",")
		case name == "valid-after" && s.after.IsZero():
			s.after, err = parseDate(value)
		case name == "valid-before" && s.before.IsZero():
			s.before, err = parseDate(value)
		default:
			return errors.New("the option " + name + " is unknown or given twice")
		}
		if err != nil {
			return errors.New("the value of the option " + name + " is not a date YYYYMMDD[HHMM[SS]][Z]")
		}
	}
	return nil
}

func unquote(value string) (string, bool) {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' || strings.Contains(value[1:len(value)-1], `"`) {
		return "", false
	}
	return value[1 : len(value)-1], true
}

// parseDate parses a date, which is local time unless it ends with Z, as for ssh-keygen.
func parseDate(value string) (time.Time, error) {
	zone := time.Local
	if trimmed, ok := strings.CutSuffix(value, "Z"); ok {
		value, zone = trimmed, time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(layout) == len(value) {
			return time.ParseInLocation(layout, value, zone)
		}
	}
	return time.Time{}, errors.New("not a date")
}
