package fetch

import (
	"bufio"
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// sums is what a file of checksums lists.
type sums struct {
	entries []sumEntry
	weak    bool // there are entries of other algorithms (MD5, SHA-1), which do not count
}

type sumEntry struct {
	name   string // as it stands in the file; empty for a bare checksum
	digest disk.Digest
}

var (
	gnuLine = regexp.MustCompile(`^\\?([0-9A-Fa-f]{32,128})[ \t]+\*?(\S.*)$`)
	bsdLine = regexp.MustCompile(`^(SHA256|SHA512|SHA2-256|SHA2-512|MD5|SHA1) ?\((.+)\) ?= ?([0-9A-Fa-f]+)$`)
	hexOnly = regexp.MustCompile(`^[0-9A-Fa-f]{32,128}$`)
)

// parseSums reads what sha256sum, sha512sum and their BSD relatives write. Lines
// of any other form are comments, blank, or the armour of a clear-signed file,
// whose signature is not judged here.
func parseSums(b []byte) sums {
	var s sums
	scan := bufio.NewScanner(bytes.NewReader(b))
	scan.Buffer(nil, len(b)+1)
	for scan.Scan() {
		s.add(strings.TrimSpace(strings.TrimPrefix(scan.Text(), "\ufeff")))
	}
	return s
}

func (s *sums) add(line string) {
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
		return
	}
	s.entries = append(s.entries, sumEntry{strings.TrimSpace(name), d})
}

// find returns the digest that is listed for a file called base, whatever folder
// the list has it in. A file listed with several algorithms has the SHA-512,
// which is computed in any case; two digests of one algorithm are a conflict.
func (s *sums) find(base string) (d disk.Digest, conflict bool) {
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

// bare returns the checksum of a file that holds nothing else.
func (s *sums) bare() (disk.Digest, bool) {
	if len(s.entries) == 1 && s.entries[0].name == "" {
		return s.entries[0].digest, true
	}
	return disk.Digest{}, false
}

// near returns the names of the list that are most like base, for a message.
func (s *sums) near(base string) []string {
	type candidate struct {
		name     string
		distance int
	}
	limit := max(3, len(base)/3)
	var close []candidate
	for _, e := range s.entries {
		name := fileName(e.name)
		if d := editDistance(name, base, limit); name != "" && d <= limit {
			close = append(close, candidate{name, d})
		}
	}
	slices.SortStableFunc(close, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, c := range close[:min(3, len(close))] {
		names = append(names, c.name)
	}
	return names
}

func fileName(name string) string { return name[strings.LastIndexAny(name, `/\`)+1:] }
