package model

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Fault is the cause of a failure. It decides which node or disk may succeed instead.
type Fault string

const (
	// FaultSource: the upstream or its bytes are the cause. No other node retries.
	FaultSource Fault = ""
	// FaultNetwork: the cause is the upstream, or this node's connection to it. Another node may succeed.
	FaultNetwork Fault = "network"
	// FaultDisk: the disk is the cause. Another disk may succeed.
	FaultDisk Fault = "disk"
)

// Failure describes the failed attempts of one copy since the last success. It is kept in
// memory until the next success, and lost with the process.
type Failure struct {
	Op       Op        `json:"op,omitempty"` // the operation that failed; "": any
	Fault    Fault     `json:"fault,omitempty"`
	Attempts int       `json:"attempts"`         // failed ones; 0: the operation is only delayed
	Since    time.Time `json:"since,omitzero"`   // the first failed attempt
	RetryAt  time.Time `json:"retryAt,omitzero"` // the next attempt
	Message  string    `json:"message"`
	// Final: as far as is known, only another declaration helps. Then RetryAt is zero, or the time of
	// a rare attempt that finds out whether the source has changed.
	Final bool `json:"final,omitempty"`
	// NeedsSpace is how many bytes must be free on the disk for the next attempt. A second
	// attempt starts as soon as they are. 0: space is not the cause.
	NeedsSpace int64 `json:"needsSpace,omitempty"`
	// Unrepairable: a repair of the copy failed, so that it must be replaced.
	Unrepairable bool `json:"unrepairable,omitempty"`
	// Suspects are ready copies that gave wrong bytes to the job, and that have not been
	// verified since.
	Suspects []ident.CopyRef `json:"suspects,omitempty"`
}

// AppliesTo reports whether the failure concerns the operation.
func (f Failure) AppliesTo(op Op) bool { return f.Op == "" || f.Op == op }

// Delays reports whether the failure delays the operation at the time now. After a lack of
// space, the second attempt starts without delay as soon as there is enough space. Later
// attempts wait, because another job may use the same space each time.
func (f Failure) Delays(op Op, now time.Time) bool {
	switch {
	case !f.AppliesTo(op):
		return false
	case f.Final && f.RetryAt.IsZero():
		return true
	case f.Final:
		return f.RetryAt.After(now)
	case f.NeedsSpace > 0 && f.Attempts < 2:
		return false
	}
	return f.RetryAt.After(now)
}

// Translated returns the failure with times of another clock. from and to are the same moment on the old and the new clock.
func (f Failure) Translated(from, to time.Time) Failure {
	for _, at := range []*time.Time{&f.Since, &f.RetryAt} {
		if !at.IsZero() {
			*at = to.Add(at.Sub(from))
		}
	}
	return f
}
