package status

import (
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"slices"
	"time"
)

// ContentSum returns a hash of the document without what changes all the time: the time of the observation and of the last
// responses of peers, times that are computed from a duration in each round, durations in messages, the progress of jobs, and
// the free space of disks. It encodes one part after the other: a status may have many megabytes.
func (s Status) ContentSum() [sha256.Size]byte {
	hash := sha256.New()
	add := func(part any) {
		document, err := json.Marshal(part)
		if err != nil {
			panic("status: encode a status: " + err.Error()) // its types have no values that JSON lacks
		}
		hash.Write(append(durations.ReplaceAll(document, nil), '\n'))
	}
	for _, p := range s.Peers {
		p.LastResponse, p.UnreachableSince, p.OtherConfigSince = time.Time{}, time.Time{}, time.Time{}
		add(p)
	}
	for _, d := range s.Disks {
		d.Free, d.ProblemSince = 0, time.Time{}
		add(d)
	}
	for _, image := range s.Images {
		image.Copies = slices.Clone(image.Copies)
		for i := range image.Copies {
			c := &image.Copies[i]
			c.Progress, c.Done, c.RealSize, c.Sends, c.PartBytes = 0, 0, 0, 0, 0
			c.Until, c.LastUsed, c.AwaitedSince = time.Time{}, time.Time{}, time.Time{}
		}
		add(image)
	}
	for _, a := range s.Plan.Actions {
		a.Until = time.Time{}
		add(a)
	}
	s.Time, s.Peers, s.Disks, s.Images, s.Plan.Actions = time.Time{}, nil, nil, nil, nil
	add(s)
	return [sha256.Size]byte(hash.Sum(nil))
}

// durations matches the durations in messages, such as "no data for 1m12s".
var durations = regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:s|ms)\b`)

// WithoutDurations removes the durations from a message, to compare it with an earlier one.
func WithoutDurations(message string) string { return durations.ReplaceAllString(message, "") }
