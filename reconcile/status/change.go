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
// the free space of disks.
func (s Status) ContentSum() [sha256.Size]byte {
	s.Time = time.Time{}
	s.Peers, s.Disks, s.Images = slices.Clone(s.Peers), slices.Clone(s.Disks), slices.Clone(s.Images)
	for i := range s.Peers {
		p := &s.Peers[i]
		p.LastResponse, p.UnreachableSince, p.OtherConfigSince = time.Time{}, time.Time{}, time.Time{}
	}
	for i := range s.Disks {
		s.Disks[i].Free, s.Disks[i].ProblemSince = 0, time.Time{}
	}
	for i := range s.Images {
		s.Images[i].Copies = slices.Clone(s.Images[i].Copies)
		for j := range s.Images[i].Copies {
			c := &s.Images[i].Copies[j]
			c.Progress, c.Done, c.RealSize, c.Sends, c.PartBytes = 0, 0, 0, 0, 0
			c.Until, c.LastUsed, c.AwaitedSince = time.Time{}, time.Time{}, time.Time{}
		}
	}
	s.Plan.Actions = slices.Clone(s.Plan.Actions)
	for i := range s.Plan.Actions {
		s.Plan.Actions[i].Until = time.Time{}
	}
	document, err := json.Marshal(s)
	if err != nil {
		panic("status: encode a status: " + err.Error()) // its types have no values that JSON lacks
	}
	return sha256.Sum256(durations.ReplaceAll(document, nil))
}

// durations matches the durations in messages, such as "no data for 1m12s".
var durations = regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:s|ms)\b`)

// WithoutDurations removes the durations from a message, to compare it with an earlier one.
func WithoutDurations(message string) string { return durations.ReplaceAllString(message, "") }
