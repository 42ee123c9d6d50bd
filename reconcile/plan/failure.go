package plan

import "time"

// Fault says where the cause of a failure lies, and so who may succeed instead.
type Fault uint8

const (
	// FaultSource: the upstream or its bytes. No other node needs to try.
	FaultSource Fault = iota
	// FaultNetwork: the source, or this node's connection to it. Another node may succeed.
	FaultNetwork
	// FaultDisk: the disk. Another disk may succeed.
	FaultDisk
)

// FaultOf returns the fault for the two flags that JSON documents have in its place.
func FaultOf(disk, network bool) Fault {
	switch {
	case disk:
		return FaultDisk
	case network:
		return FaultNetwork
	}
	return FaultSource
}

// Failure describes the failed attempts of one copy since the last success. It is kept in
// memory until the next success, and lost with the process.
type Failure struct {
	Op       Op // the operation that failed; "": any
	Fault    Fault
	Attempts int
	Since    time.Time // the first failed attempt
	RetryAt  time.Time // the next attempt
	Message  string
	// Final: only another declaration helps.
	Final bool
	// NeedsSpace is how many bytes must be free on the disk for the next attempt, which
	// starts as soon as they are. 0: space is not the cause.
	NeedsSpace int64
	// Unrepairable: a repair of the copy failed, so that it must be replaced.
	Unrepairable bool
	// Suspects are ready copies that gave wrong bytes when they were read, and that have not
	// been verified since.
	Suspects []CopyRef
}

// AppliesTo reports whether the failure concerns the operation.
func (f Failure) AppliesTo(op Op) bool { return f.Op == "" || f.Op == op }

// delays reports whether the failure delays the operation at the time now. After a lack of
// space, one attempt starts without delay as soon as there is space. Only one: another
// job may take the same space.
func (f Failure) delays(op Op, now time.Time) bool {
	switch {
	case !f.AppliesTo(op):
		return false
	case f.Final:
		return true
	case f.NeedsSpace > 0 && f.Attempts < 2:
		return false
	}
	return f.RetryAt.After(now)
}

// OnWallClock translates the times of f from the steady clock to the wall clock. now and wall
// are the same moment on both clocks.
func (f Failure) OnWallClock(now, wall time.Time) Failure {
	for _, at := range []*time.Time{&f.Since, &f.RetryAt} {
		if !at.IsZero() {
			*at = wall.Add(at.Sub(now))
		}
	}
	return f
}
