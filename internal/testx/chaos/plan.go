package chaos

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of event.
type Kind string

// The kinds of events. Those with a duration are faults that are healed after it.
const (
	Kill        Kind = "kill"        // SIGKILL; the daemon starts again after the duration
	Halt        Kind = "halt"        // SIGINT; the daemon starts again after the duration
	Pause       Kind = "pause"       // SIGSTOP
	Silence     Kind = "silence"     // packets between two nodes vanish
	OneWay      Kind = "one-way"     // packets from one node to another one vanish
	Refuse      Kind = "refuse"      // connections between two nodes fail at once
	Isolate     Kind = "isolate"     // packets between a node and all others vanish
	Offline     Kind = "offline"     // a node does not reach the upstream
	Full        Kind = "full"        // a disk has a few KiB left
	Vanish      Kind = "vanish"      // a disk is unmounted
	ReadOnly    Kind = "read-only"   // the file system of a disk is remounted read-only
	Lose        Kind = "lose"        // a disk is replaced by an empty one
	Rot         Kind = "rot"         // a bit of a copy flips; only reading the copy shows it
	Overwrite   Kind = "overwrite"   // a program writes a byte into a copy
	Garble      Kind = "garble"      // a small file beside a copy is torn
	Stale       Kind = "stale"       // the config directory of a node gets no changes
	Broken      Kind = "broken"      // a file in the config directory of a node does not parse
	Emptied     Kind = "emptied"     // the config directory of a node is empty
	Upstream    Kind = "upstream"    // the upstream of an image misbehaves
	Volume      Kind = "volume"      // a replica uses a copy
	Open        Kind = "open"        // a process has a copy open
	Generation  Kind = "generation"  // an image gets other bytes
	Undeclare   Kind = "undeclare"   // an image is removed and, after the duration, declared again
	Copies      Kind = "copies"      // an image gets another number of copies
	Evict       Kind = "evict"       // a disk is drained
	NoSchedule  Kind = "no-schedule" // a disk gets no new copy
	Suspend     Kind = "suspend"     // everything is suspended
	CleanUp     Kind = "clean-up"    // somebody asks for the deletion of a copy
	Retry       Kind = "retry"
	Verify      Kind = "verify"
	Upload      Kind = "upload"
	Interrupted Kind = "interrupted" // an upload whose client is killed after the duration
	Download    Kind = "download"
)

// Event is one event of a plan.
type Event struct {
	At   time.Duration // since the start of the cycle
	For  time.Duration // until the fault is healed; 0: there is nothing to heal
	Kind Kind
	// Pick chooses among what the event can happen to, when it happens: nodes, disks, images.
	Pick [3]uint64
}

// frequency is how often a kind occurs, and how long it lasts.
type frequency struct {
	kind     Kind
	weight   int
	min, max time.Duration
}

// frequencies has two kinds of durations: most faults are shorter than the intervals after which
// other nodes act, some are longer.
var frequencies = []frequency{
	{Kill, 10, 0, 8 * time.Second},
	{Halt, 4, 0, 6 * time.Second},
	{Pause, 6, time.Second, 20 * time.Second},
	{Silence, 4, time.Second, 15 * time.Second},
	{OneWay, 2, time.Second, 15 * time.Second},
	{Refuse, 3, time.Second, 12 * time.Second},
	{Isolate, 2, time.Second, 45 * time.Second},
	{Offline, 2, time.Second, 12 * time.Second},
	{Full, 4, time.Second, 12 * time.Second},
	{Vanish, 5, time.Second, 15 * time.Second},
	{ReadOnly, 3, time.Second, 12 * time.Second},
	{Lose, 2, 0, 0},
	{Rot, 6, 0, 0},
	{Overwrite, 3, 0, 0},
	{Garble, 3, 0, 0},
	{Stale, 3, 2 * time.Second, 20 * time.Second},
	{Broken, 3, time.Second, 15 * time.Second},
	{Emptied, 2, time.Second, 12 * time.Second},
	{Upstream, 10, 2 * time.Second, 15 * time.Second},
	{Volume, 5, 2 * time.Second, 20 * time.Second},
	{Open, 4, 2 * time.Second, 15 * time.Second},
	{Generation, 8, 0, 0},
	{Undeclare, 4, 3 * time.Second, 20 * time.Second},
	{Copies, 5, 0, 0},
	{Evict, 3, 3 * time.Second, 20 * time.Second},
	{NoSchedule, 2, 2 * time.Second, 15 * time.Second},
	{Suspend, 1, 2 * time.Second, 8 * time.Second},
	{CleanUp, 5, 0, 0},
	{Retry, 5, 0, 0},
	{Verify, 4, 0, 0},
	{Upload, 4, 0, 0},
	{Interrupted, 2, 10 * time.Millisecond, time.Second},
	{Download, 4, 0, 0},
}

// newPlan returns the events of one cycle, in order: one for each time apart, at random moments. No fault
// lasts longer than longest. Equal arguments return equal plans.
func newPlan(seed uint64, cycle int, length, apart, longest time.Duration) []Event {
	dice := rand.New(rand.NewPCG(seed, uint64(cycle)))
	total := 0
	for _, f := range frequencies {
		total += f.weight
	}
	var events []Event
	for range length / apart {
		f := pickFrequency(dice.IntN(total))
		e := Event{Kind: f.kind, At: time.Duration(dice.Int64N(int64(length))), Pick: [3]uint64{dice.Uint64(), dice.Uint64(), dice.Uint64()}}
		if f.max > 0 {
			e.For = min(f.min+time.Duration(dice.Int64N(int64(f.max-f.min))), longest)
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return int(a.At - b.At) })
	return events
}

func pickFrequency(n int) frequency {
	for _, f := range frequencies {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("n is not below the sum of the weights")
}

// pick chooses one of the candidates, which must not be empty.
func pick[T any](n uint64, candidates []T) T { return candidates[n%uint64(len(candidates))] }
