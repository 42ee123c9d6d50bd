package fetch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// maxChecksumFile is the maximum size of a checksum file. The checksum file of a whole distribution
// has 100 KiB.
const maxChecksumFile = 1 << 20

// LookUpChecksum finds the image of r in the checksum file at r.ChecksumURL. It searches for the file
// name in r.URL, or in a mirror. For a packed image, packed is the digest that the checksum file
// lists for this name, and stored is the digest that it lists for the name without the suffix of the
// packing. For an image that is not packed, stored is the digest of the name. One of the two may be
// zero. Errors are those of Download.
func (c *Client) LookUpChecksum(ctx context.Context, r Request) (stored, packed disk.Digest, err error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return stored, packed, err
	}
	defer t.net.close()
	list, err := parseAddress(r.ChecksumURL)
	if err != nil {
		return stored, packed, err
	}
	b, err := t.readSmall(ctx, list)
	if err != nil {
		return stored, packed, err
	}
	return t.lookUp(b, list)
}

// lookUp finds the image of t in the checksum file b.
func (t *transfer) lookUp(b []byte, list address) (stored, packed disk.Digest, err error) {
	stored, packed, err = digestsOf(parseChecksumList(b), list, t.addresses, t.packing)
	if err != nil { // not final, like a 404: the list may be completed later
		err = &Error{Class: Refused, URL: list.String(), Err: err}
	}
	return stored, packed, err
}

// readSmall reads a checksum file, or a signature, under the rules and with the credentials of t.
func (t *transfer) readSmall(ctx context.Context, a address) ([]byte, error) {
	small := *t
	small.addresses, small.selfDelimiting, small.restart = []address{a}, true, false
	small.packing, small.limiter, small.request.MaxSize, small.request.SkipAddresses = notPacked, nil, 0, 0
	file := &memorySink{limit: maxChecksumFile}
	if err := small.fetchAny(ctx, file); err != nil {
		return nil, err
	}
	return file.bytes, nil
}

// digestsOf finds the image with one of the addresses. A single checksum without a file name is the
// checksum of the packed file, unless the name of the checksum file indicates the unpacked file
// (a.raw.sha256 for a.raw.xz).
func digestsOf(s checksumList, list address, addresses []address, p packing) (stored, packed disk.Digest, err error) {
	if d, ok := s.single(); ok {
		if p == notPacked || strings.TrimSuffix(list.base(), path.Ext(list.base())) == unpackedName(addresses[0]) {
			return d, packed, nil
		}
		return stored, d, nil
	}
	for _, a := range addresses {
		var conflict, conflict2 bool
		base := a.base()
		if p == notPacked {
			stored, conflict = s.find(base)
		} else {
			packed, conflict = s.find(base)
			stored, conflict2 = s.find(unpackedName(a))
		}
		if conflict || conflict2 {
			return disk.Digest{}, disk.Digest{}, fmt.Errorf("%q %w", base, ErrListedTwice)
		}
		if !stored.IsZero() || !packed.IsZero() {
			return stored, packed, nil
		}
	}
	return stored, packed, notListed(s, addresses[0].base())
}

func unpackedName(a address) string { return strings.TrimSuffix(a.base(), path.Ext(a.base())) }

func notListed(s checksumList, base string) error {
	switch similar := s.similar(base); {
	case len(s.entries) == 0 && s.weak:
		return errors.New("the file lists no SHA-256 or SHA-512 checksums, only weaker ones")
	case len(s.entries) == 0:
		return errors.New("the file lists no checksums")
	case len(similar) > 0:
		return fmt.Errorf("%q is not listed: similar names are %s", base, strings.Join(similar, ", "))
	}
	return fmt.Errorf("%q is not listed among %d checksums", base, len(s.entries))
}

// memorySink stores a small file in memory.
type memorySink struct {
	source disk.PartSource
	bytes  []byte
	limit  int
}

// Source returns the source of the stored bytes.
func (m *memorySink) Source() disk.PartSource { return m.source }

// Offset returns the number of stored bytes.
func (m *memorySink) Offset() int64 { return int64(len(m.bytes)) }

// Begin discards the bytes.
func (m *memorySink) Begin(o disk.PartSource) error {
	m.source, m.bytes = o, m.bytes[:0]
	return nil
}

// ReadFrom appends the bytes of r, up to the limit.
func (m *memorySink) ReadFrom(r io.Reader) (int64, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(m.limit-len(m.bytes))+1))
	m.bytes = append(m.bytes, b...)
	if err == nil && len(m.bytes) > m.limit {
		err = failf(BadSource, "the file is larger than %d bytes", m.limit)
	}
	return int64(len(b)), err
}

// checksumList is a parsed checksum file.
type checksumList struct {
	entries []checksumEntry
	weak    bool // the file also has entries of other algorithms (MD5, SHA-1), which are ignored
	// malformed is a checksum whose length is that of no algorithm, such as one that was cut off; "": none
	malformed string
}

type checksumEntry struct {
	name   string // as in the file; empty for a single checksum without a name
	digest disk.Digest
}

var (
	gnuLine = regexp.MustCompile(`^\\?([0-9A-Fa-f]{32,128})[ \t]+\*?(\S.*)$`)
	bsdLine = regexp.MustCompile(`^(SHA256|SHA512|SHA2-256|SHA2-512|MD5|SHA1) ?\((.+)\) ?= ?([0-9A-Fa-f]+)$`)
	hexOnly = regexp.MustCompile(`^[0-9A-Fa-f]{32,128}$`)
)

// weakLengths are the lengths of the checksums that are ignored: MD5, SHA-1, SHA-224 and SHA-384.
var weakLengths = []int{32, 40, 56, 96}

// parseChecksumList parses the output of sha256sum and sha512sum, and of the BSD programs with the
// same purpose. It ignores all other lines, such as comments, blank lines and the armour of a
// clear-signed file. It does not verify signatures: ReadSignature passes only the signed bytes.
func parseChecksumList(b []byte) checksumList {
	var s checksumList
	scan := bufio.NewScanner(bytes.NewReader(b))
	scan.Buffer(nil, len(b)+1)
	for scan.Scan() {
		s.addLine(strings.TrimSpace(strings.TrimPrefix(scan.Text(), "\ufeff")))
	}
	return s
}

func (s *checksumList) addLine(line string) {
	var name, digits string
	if m := bsdLine.FindStringSubmatch(line); m != nil {
		name, digits = m[2], m[3]
	} else if m := gnuLine.FindStringSubmatch(line); m != nil {
		name, digits = m[2], m[1]
	} else if hexOnly.MatchString(line) {
		digits = line
	} else {
		return
	}
	algorithm := map[int]string{64: "sha256:", 128: "sha512:"}[len(digits)]
	d, err := disk.ParseDigest(algorithm + strings.ToLower(digits))
	if algorithm == "" || err != nil {
		s.weak = true
		if !slices.Contains(weakLengths, len(digits)) {
			s.malformed = digits
		}
		return
	}
	s.entries = append(s.entries, checksumEntry{strings.TrimSpace(name), d})
}

// find returns the digest that is listed for a file called base, in any folder. If the list has
// several algorithms for the file, the result is the SHA-512, because a SHA-512 is computed in any
// case. conflict is true if two digests of the same algorithm differ.
func (s *checksumList) find(base string) (d disk.Digest, conflict bool) {
	found := map[disk.Algorithm]disk.Digest{}
	for _, e := range s.entries {
		if fileName(e.name) != base {
			continue
		}
		if old, ok := found[e.digest.Algorithm()]; ok && old != e.digest {
			return disk.Digest{}, true
		}
		found[e.digest.Algorithm()] = e.digest
	}
	if d, ok := found[disk.SHA512]; ok {
		return d, false
	}
	return found[disk.SHA256], false
}

// single returns the checksum of a checksum file that contains only one checksum without a file name.
func (s *checksumList) single() (disk.Digest, bool) {
	if len(s.entries) == 1 && s.entries[0].name == "" {
		return s.entries[0].digest, true
	}
	return disk.Digest{}, false
}

// similar returns up to three file names of the list that are most similar to base, for an error
// message.
func (s *checksumList) similar(base string) []string {
	var names []string
	for _, e := range s.entries {
		name := fileName(e.name)
		if name != "" && 3*inCommon(name, base) >= 2*max(len(name), len(base)) {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(inCommon(b, base), inCommon(a, base)) })
	return names[:min(3, len(names))]
}

// inCommon returns the length of the common prefix plus the length of the common suffix of a and b.
func inCommon(a, b string) int {
	n, shorter := 0, min(len(a), len(b))
	for n < shorter && a[n] == b[n] {
		n++
	}
	for prefix := n; n < shorter && a[len(a)-1-n+prefix] == b[len(b)-1-n+prefix]; {
		n++
	}
	return n
}

func fileName(name string) string { return name[strings.LastIndexAny(name, `/\`)+1:] }
