// Package checksum finds the digests of a file in a checksum list, such as SHA256SUMS. It does no I/O, and verifies no
// signature of a list.
package checksum

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Listed are the digests that a checksum list has for a file, the strongest first. A list may have several algorithms.
type Listed struct {
	Stored []ident.Digest // of the unpacked file, or of a file that is not packed
	Packed []ident.Digest // of the packed file
}

// Why a list has no digest for a file.
var (
	// ErrNotListed means that the list does not have the file, or has only checksums of it that are not used, such as MD5.
	ErrNotListed = errors.New("is not listed")
	// ErrListedTwice means that the list has different checksums of one algorithm for the file.
	ErrListedTwice = errors.New("is listed with more than one checksum")
)

// notListedError is ErrNotListed with the reason.
type notListedError struct{ error }

func (e *notListedError) Is(target error) bool { return target == ErrNotListed }

// List is a parsed checksum list.
type List struct {
	entries []checksumEntry
	// section is the algorithm in the heading above a line, or in the name of the list; "": none. The length of a
	// checksum decides only if nothing names its algorithm: BLAKE2b is as long as SHA-512, and BLAKE3 as SHA-256.
	section string
	// malformed is a checksum of the wrong length for its algorithm, such as a truncated checksum; "": none
	malformed string
}

type checksumEntry struct {
	name      string // with slashes; empty: the line has none
	algorithm string
	digest    ident.Digest // zero: the algorithm is not used, such as MD5 and BLAKE2b
}

// algorithmWord matches names of algorithms in places where another word may stand. Its length is limited, because a
// checksum may also begin with "b2".
const algorithmWord = `(?:md|sha|blake|b2|b3|rmd|ripemd|whirlpool|sm3|streebog|tiger)[\w/-]{0,12}`

var (
	// checksumLines are the forms of a line. The first form that matches counts:
	//
	//	SHA256 (NAME) = HEX          BSD programs, --tag, openssl; the algorithm may be missing
	//	HEX  NAME    HEX *NAME       sha256sum; "sha256:" or a column with it may precede; the name may be missing
	//	NAME: HEX
	checksumLines = []*regexp.Regexp{
		regexp.MustCompile(`^(?P<escaped>\\)?(?P<algorithm>[A-Za-z][\w/-]*)? ?\((?P<name>.+)\) ?= ?(?P<hex>[0-9A-Fa-f]+)$`),
		regexp.MustCompile(`^(?P<escaped>\\)?(?:(?P<algorithm>(?i:` + algorithmWord + `))[ \t]*[:= \t][ \t]*)?(?P<hex>[0-9A-Fa-f]+)(?:[ \t]+\*?(?P<name>\S.*))?$`),
		regexp.MustCompile(`^(?P<name>\S.*?)[ \t]*:[ \t]*(?:(?P<algorithm>(?i:` + algorithmWord + `))[:=])?(?P<hex>[0-9A-Fa-f]+)(?P<escaped>)$`),
	}
	// checksumHeading is a line that names the algorithm of the lines below it, such as "# SHA512 HASH" or "SHA256:". An
	// unknown name counts as an algorithm only in the form of Gentoo, "# NAME HASH".
	checksumHeading = regexp.MustCompile(`^(?:[#=* -]*((?i:` + algorithmWord + `))(?i: (?:hash(?:es)?|checksums?|sums?|digests?))?[:=* -]*|# ?([A-Z0-9/_-]+) HASH)$`)
	// otherLists matches names of lists whose algorithm is not used, but has checksums as long as SHA-256 or SHA-512.
	otherLists = regexp.MustCompile(`(?i)(?:^|[^a-z0-9])(b[23]sums?|blake[23][a-z]*|sha3(?:[_-]?\d+)?|sha-?512[_-]?256)(?:sums?)?(?:\.[a-z]+)?$|\.(b[23])$`)
	unescape   = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// Parse parses the output of sha256sum and sha512sum, of the BSD programs with the same purpose, and of other
// programs: docs/sources.md has a table. It ignores all other lines, such as comments and the armour of a clear-signed
// file. base is the name of the list.
func Parse(b []byte, base string) *List {
	var s List
	if m := otherLists.FindStringSubmatch(base); m != nil {
		s.section = algorithmName(m[1] + m[2])
	}
	b, _, _ = transform.Bytes(unicode.BOMOverride(transform.Nop), b) // PowerShell writes UTF-16. Wrong bytes are replaced
	scan := bufio.NewScanner(bytes.NewReader(b))
	scan.Buffer(nil, len(b)+1)
	for scan.Scan() {
		s.addLine(strings.TrimSpace(scan.Text()))
	}
	return &s
}

// addLine adds the checksum of a line, or notes the algorithm of a heading.
func (s *List) addLine(line string) {
	if len(line) > maxChecksumLine {
		return
	}
	for i, form := range checksumLines {
		m := form.FindStringSubmatch(line)
		if m != nil && (i == 0 || len(m[form.SubexpIndex("hex")]) >= md5Digits) {
			part := func(name string) string { return m[form.SubexpIndex(name)] }
			name := strings.TrimSpace(part("name"))
			if part("escaped") != "" {
				name = unescape.Replace(name)
			} else {
				name = strings.ReplaceAll(name, `\`, "/")
			}
			if name == "-" || name == "stdin" { // as sha256sum and openssl name their standard input
				name = ""
			}
			hex := strings.ToLower(part("hex"))
			algorithm := cmp.Or(algorithmName(part("algorithm")), s.section, lengths[len(hex)], cutOff)
			digest, err := ident.ParseDigest(algorithm + ":" + hex)
			if err != nil && slices.Contains([]string{"sha256", "sha512", cutOff}, algorithm) {
				s.malformed, algorithm = hex, cutOff
			}
			s.entries = append(s.entries, checksumEntry{name, algorithm, digest})
			return
		}
	}
	if m := checksumHeading.FindStringSubmatch(line); m != nil {
		s.section = algorithmName(m[1] + m[2])
	}
}

// lengths has the algorithm of a checksum by the number of its hex digits, for checksums whose algorithm nothing names.
var lengths = map[int]string{32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}

const (
	cutOff          = "cut off"
	md5Digits       = 32   // a shorter word is no checksum
	maxChecksumLine = 4096 // bytes; longer lines are ignored, because a hostile list could take minutes
)

// algorithmName returns the name of an algorithm in one spelling: "sha256" for "SHA2-256" or "SHA256SUMS". It returns ""
// for "SHA" and "SHA2", because the length of a checksum says more.
func algorithmName(s string) string {
	s = strings.NewReplacer("-", "", "_", "", "/", "").Replace(strings.ToLower(s))
	s = strings.TrimSuffix(strings.TrimSuffix(s, "s"), "sum")
	if bits, ok := strings.CutPrefix(s, "sha2"); ok && len(bits) == 3 { // sha2256
		s = "sha" + bits
	}
	if s == "sha" || s == "sha2" {
		return ""
	}
	return s
}

// Naming says which single checksum counts in a list without the name of the image. In a signed list, only the name shows
// that a checksum is not of another file of the vendor.
type Naming int

const (
	Named   Naming = iota // none
	Unnamed               // a checksum without a name
	Renamed               // also a checksum with another name, in a list that is called like the image, such as a.img.sha256
)

// Malformed returns an error if a line has a checksum of an impossible length.
func (s *List) Malformed() error {
	if s.malformed == "" {
		return nil
	}
	return fmt.Errorf("the checksum list is malformed: a checksum of %d hex digits has the wrong length", len(s.malformed))
}

// Find returns the digests of an image. list is the path of the list, and paths are the paths of the image on its servers:
// one that the list has is enough. packed means that the image is a packed file. The error wraps ErrNotListed or
// ErrListedTwice.
//
// The name of the image is the last element in a path that the list has: ".../a.iso/download" is a.iso.
// If no entry has this name, but a single entry counts (see Naming), its digest is that of the image on the server. There is
// one exception: a list with the name of the unpacked file (a.raw.sha256 for a.raw.xz) has the digest of the unpacked file.
func (s *List) Find(list string, paths []string, packed bool, without Naming) (found Listed, err error) {
	folder, name, base := path.Dir(list), path.Base(list), path.Base(paths[0])
	for _, file := range paths {
		for ; len(file) > 1; file = path.Dir(file) {
			var errPacked error
			if packed {
				found.Packed, errPacked = s.digests(folder, file)
				found.Stored, err = s.digests(folder, unpackedName(file))
			} else {
				found.Stored, err = s.digests(folder, file)
			}
			if err = cmp.Or(errPacked, err); err != nil || len(found.Stored)+len(found.Packed) > 0 {
				return found, err
			}
		}
	}
	only, isOnly := s.onlyName()
	forUnpacked := unpackedName(name) == unpackedName(base)
	called := forUnpacked || strings.HasPrefix(name, base+".")
	var all []ident.Digest
	if isOnly && (without == Renamed && called || without != Named && only == "") {
		all, err = digests(s.entries, base)
	}
	switch {
	case err == nil && len(all) == 0:
		return found, &notListedError{s.notListed(base)}
	case !packed || forUnpacked:
		found.Stored = all
	default:
		found.Packed = all
	}
	return found, err
}

func unpackedName(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }

// digests returns the digests of the file with a path on its server. Entries with exactly this path count, relative to the
// folder of the list. If there are none, entries with the same file name in any folder count.
func (s *List) digests(folder, file string) ([]ident.Digest, error) {
	other := func(e checksumEntry) bool { return e.name == "" || path.Join(folder, e.name) != file }
	same := slices.DeleteFunc(slices.Clone(s.entries), other)
	if len(same) == 0 {
		other = func(e checksumEntry) bool { return path.Base(e.name) != path.Base(file) }
		same = slices.DeleteFunc(slices.Clone(s.entries), other)
	}
	return digests(same, path.Base(file))
}

// digests returns the different digests of the entries of one file, the strongest first.
func digests(entries []checksumEntry, file string) ([]ident.Digest, error) {
	found := map[ident.Algorithm]ident.Digest{}
	for _, e := range entries {
		d, a := e.digest, e.digest.Algorithm()
		if found[a] != d && !found[a].IsZero() {
			return nil, fmt.Errorf("%q %w", file, ErrListedTwice)
		}
		found[a] = d
	}
	all := []ident.Digest{found[ident.SHA512], found[ident.SHA256]}
	return slices.DeleteFunc(all, ident.Digest.IsZero), nil
}

// onlyName returns the name that all entries have.
func (s *List) onlyName() (name string, ok bool) {
	if len(s.entries) == 0 {
		return "", false
	}
	name = s.entries[0].name
	return name, !slices.ContainsFunc(s.entries, func(e checksumEntry) bool { return e.name != name })
}

// notListed returns why the list has no digest for the file with a name.
func (s *List) notListed(base string) error {
	only, isOnly := s.onlyName()
	var others []string // algorithms
	for _, e := range s.entries {
		if e.digest.IsZero() && (isOnly || path.Base(e.name) == base) {
			others = append(others, e.algorithm)
		}
	}
	slices.Sort(others)
	switch similar := s.similar(base); {
	case len(s.entries) == 0:
		return errors.New("the file lists no checksums in hex")
	case len(others) > 0:
		return fmt.Errorf("%q has no SHA-256 or SHA-512 in the list, only other checksums: %s", base, strings.Join(slices.Compact(others), ", "))
	case isOnly && only == "":
		return errors.New("the signed list has no file name, so its checksum may be that of another file: declare the checksum as well")
	case isOnly:
		return fmt.Errorf("%q is not listed: the only name is %q; if that is the image, declare its checksum, or an address with this name", base, only)
	case len(similar) > 0:
		return fmt.Errorf("%q is not listed: similar names are %s", base, strings.Join(similar, ", "))
	}
	return fmt.Errorf("%q is not listed among %d checksums", base, len(s.entries))
}

// similar returns up to three file names of the list that are most similar to base, for an error
// message.
func (s *List) similar(base string) []string {
	var names []string
	for _, e := range s.entries {
		name := path.Base(e.name)
		if e.name != "" && 3*inCommon(name, base) >= 2*max(len(name), len(base)) {
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
