package track

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// candidate is a published version.
type candidate struct {
	version version
	name    string // of the file, folder or version, for messages
	// resolve finds the release. Its error is errIncomplete if the version is not published completely.
	resolve func(context.Context) (found, error)
}

// found is a release before it is judged.
type found struct {
	version version // may have more parts than candidate.version
	url     string
	// checksums are those of the unpacked file, the strongest first. Empty: only the packed file has a published checksum.
	checksums []ident.Digest
}

var errIncomplete = errors.New("has no checksum")

// maxPassedOver limits how many versions are passed over, because each version costs requests.
const maxPassedOver = 10

// judge returns the newest complete release among the candidates. pinned is the version of the declared address, or nil.
func judge(ctx context.Context, m Image, pinned version, candidates []candidate) (Answer, error) {
	if len(candidates) == 0 {
		return Answer{}, refuse(NothingMatches, "nothing that is published matches the tracker: correct the field track")
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return b.version.compare(a.version) })
	answer := Answer{Pinned: pinned.String()}
	var incomplete error
	for i, c := range candidates {
		order := 1
		if pinned != nil { // the name of a folder may have only the first parts of a version
			order = c.version.compare(pinned[:min(len(pinned), len(c.version))])
		}
		if order < 0 && incomplete != nil {
			break
		}
		if order < 0 {
			return answer, refuse(OlderThanPinned, "the newest version is %s, and %s is declared", c.version, answer.Pinned)
		}
		if i+1 < len(candidates) && c.version.compare(candidates[i+1].version) == 0 {
			return answer, refuse(Ambiguous, "%s and %s are the same version", c.name, candidates[i+1].name)
		}
		f, err := c.resolve(ctx)
		if err == nil {
			return answer.judge(m, pinned, f)
		}
		if !errors.Is(err, errIncomplete) {
			return answer, err
		}
		answer.PassedOver, incomplete = append(answer.PassedOver, c.version.String()), err
		if order == 0 { // the declared version: its checksum was published before
			answer.Release = Release{Version: pinned.String(), URL: m.URL, Checksum: m.Checksum}
			return answer, nil
		}
		if len(answer.PassedOver) == maxPassedOver {
			break
		}
	}
	return answer, refuse(NoChecksum, "no checksum is published for %s (the last of these %w)", strings.Join(answer.PassedOver, ", "), incomplete)
}

// judge compares a release with the declaration.
func (a Answer) judge(m Image, pinned version, f found) (Answer, error) {
	a.Release, a.from, a.to = Release{Version: f.version.String(), URL: f.url}, pinned, f.version
	if len(f.checksums) > 0 {
		a.Checksum = f.checksums[0]
	}
	order := 1
	if f.url == m.URL {
		order = 0
	} else if pinned != nil {
		order = f.version.compare(pinned)
	}
	switch {
	case order < 0:
		return a, refuse(OlderThanPinned, "the newest version is %s, and %s is declared", f.version, pinned)
	case len(f.checksums) == 0:
		return a, refuse(PackedChecksumOnly, "only the checksum of the packed file of %s is published", f.version)
	case isPlaceholder(a.Checksum):
		return a, refuse(PlaceholderChecksum, "the checksum of %s consists of zeros", f.version)
	case order > 0 || m.Checksum.IsZero() || isPlaceholder(m.Checksum):
		a.Update = true
	case contradicts(f.checksums, m.Checksum):
		a.URL = m.URL
		return a, refuse(ChangedInPlace, "the published checksum of %s is no longer the declared checksum: find out why, then use --confirm", f.version)
	}
	if !a.Update { // another address of the same version, such as a mirror, stays as it is
		a.URL, a.Checksum = m.URL, m.Checksum
	}
	return a, nil
}

// contradicts reports whether a file with these digests is not the file with digest d: one digest has the algorithm of
// d, and differs from d.
func contradicts(digests []ident.Digest, d ident.Digest) bool {
	return slices.ContainsFunc(digests, func(e ident.Digest) bool { return e.Algorithm() == d.Algorithm() && e != d })
}

func isPlaceholder(d ident.Digest) bool {
	return strings.Trim(strings.TrimPrefix(d.String(), d.Algorithm().String()+":"), "0") == ""
}

// parseChecksum parses the checksum in hex that a document has for a file.
func parseChecksum(algorithm ident.Algorithm, hex string) ([]ident.Digest, error) {
	d, err := ident.ParseDigest(algorithm.String() + ":" + strings.ToLower(hex))
	if err != nil {
		return nil, &Refusal{Reason: Malformed, Err: err}
	}
	return []ident.Digest{d}, nil
}
