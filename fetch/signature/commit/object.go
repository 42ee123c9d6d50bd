package commit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// object is a commit object without its signature.
type object struct {
	signed     []byte
	signature  []byte // armoured
	committed  time.Time
	signatures int
	dates      int // committers with a date
}

// maxObject is the maximum size of a commit object in bytes. Git has no limit.
const maxObject = 1 << 20

// committer matches the end of a committer line: seconds since 1970 and a time zone.
var committer = regexp.MustCompile(`> ([0-9]{1,12}) [-+][0-9]{4}$`)

// split splits a commit object: headers, an empty line, and the message. A line that begins with a blank continues the
// header before.
func split(b []byte) (o object) {
	headers, message, _ := bytes.Cut(b, []byte("\n\n"))
	inSignature := false
	for line := range bytes.SplitSeq(headers, []byte("\n")) {
		name, value, _ := bytes.Cut(line, []byte(" "))
		switch {
		case len(name) == 0 && inSignature:
			o.signature = append(append(o.signature, value...), '\n')
			continue
		case string(name) == "gpgsig" || string(name) == "gpgsig-sha256":
			o.signatures++
			inSignature = true
			o.signature = append(append(o.signature, value...), '\n')
			continue
		case string(name) == "committer":
			if m := committer.FindSubmatch(line); m != nil {
				o.dates++
				seconds, _ := strconv.ParseInt(string(m[1]), 10, 64) // at most 12 digits
				o.committed = time.Unix(seconds, 0).UTC()
			}
		}
		inSignature = false
		o.signed = append(append(o.signed, line...), '\n')
	}
	o.signed = append(append(o.signed, '\n'), message...)
	return o
}

// parse returns a commit object that has one signature and one date.
func parse(b []byte) (object, error) {
	o := split(b)
	switch {
	case len(b) > maxObject:
		return o, signature.Errorf(signature.Malformed, "the commit is larger than %d bytes", maxObject)
	case !bytes.Contains(b, []byte("\n\n")):
		return o, signature.Errorf(signature.Malformed, "the object is not a commit")
	case o.signatures == 0:
		return o, signature.Errorf(signature.Unsigned, "the commit has no signature")
	case o.signatures > 1 || o.dates != 1:
		return o, signature.Errorf(signature.Malformed, "the commit must have one signature and one date, and has %d and %d", o.signatures, o.dates)
	case !o.isSSH() && !bytes.HasPrefix(o.signature, []byte("-----BEGIN PGP SIGNATURE-----\n")):
		return o, signature.Errorf(signature.Malformed, "the commit has a signature that is neither OpenPGP nor SSH")
	}
	return o, nil
}

func (o object) isSSH() bool {
	return bytes.HasPrefix(o.signature, []byte("-----BEGIN SSH SIGNATURE-----\n"))
}

// Identify returns the SHA-256, in hex, of a commit object without its signature, and the date of the commit. The date is
// zero unless the object has exactly one. The name of the object in git also covers the bytes of the signature. Anybody can
// change these without making the signature invalid: line breaks of the armour, text after it, and what an algorithm allows.
func Identify(object []byte) (signed string, committed time.Time) {
	o := split(object)
	if o.dates != 1 {
		o.committed = time.Time{}
	}
	return fmt.Sprintf("%x", sha256.Sum256(o.signed)), o.committed
}
