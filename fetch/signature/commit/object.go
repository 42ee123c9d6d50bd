package commit

import (
	"bytes"
	"regexp"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// object is a commit object without its signature.
type object struct {
	signed    []byte
	signature []byte // armoured
	isSSH     bool
	committed time.Time
}

// maxObject is the maximum size of a commit object in bytes. Git has no limit.
const maxObject = 1 << 20

// committer matches the end of a committer line: seconds since 1970 and a time zone.
var committer = regexp.MustCompile(`> ([0-9]{1,12}) [-+][0-9]{4}$`)

// parse splits a commit object: headers, an empty line, and the message. A line that begins with a blank continues the
// header before.
func parse(b []byte) (object, error) {
	var o object
	if len(b) > maxObject {
		return o, signature.Errorf(signature.Malformed, "the commit is larger than %d bytes", maxObject)
	}
	headers, message, ok := bytes.Cut(b, []byte("\n\n"))
	if !ok {
		return o, signature.Errorf(signature.Malformed, "the object is not a commit")
	}
	signatures, dates, inSignature := 0, 0, false
	for line := range bytes.SplitSeq(headers, []byte("\n")) {
		name, value, _ := bytes.Cut(line, []byte(" "))
		switch {
		case len(name) == 0 && inSignature:
			o.signature = append(append(o.signature, value...), '\n')
			continue
		case string(name) == "gpgsig" || string(name) == "gpgsig-sha256":
			signatures++
			inSignature = true
			o.signature = append(append(o.signature, value...), '\n')
			continue
		case string(name) == "committer":
			dates++
			m := committer.FindSubmatch(line)
			if m == nil {
				return o, signature.Errorf(signature.Malformed, "the commit has no date")
			}
			seconds, err := strconv.ParseInt(string(m[1]), 10, 64)
			if err != nil {
				return o, signature.Errorf(signature.Malformed, "the commit has no date")
			}
			o.committed = time.Unix(seconds, 0).UTC()
		}
		inSignature = false
		o.signed = append(append(o.signed, line...), '\n')
	}
	o.signed = append(append(o.signed, '\n'), message...)
	switch {
	case signatures == 0:
		return o, signature.Errorf(signature.Unsigned, "the commit has no signature")
	case signatures > 1 || dates != 1:
		return o, signature.Errorf(signature.Malformed, "the commit has %d signatures and %d committers", signatures, dates)
	case bytes.HasPrefix(o.signature, []byte("-----BEGIN SSH SIGNATURE-----\n")):
		o.isSSH = true
	case !bytes.HasPrefix(o.signature, []byte("-----BEGIN PGP SIGNATURE-----\n")):
		return o, signature.Errorf(signature.Malformed, "the commit has a signature that is neither OpenPGP nor SSH")
	}
	return o, nil
}
