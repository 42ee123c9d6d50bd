package config

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Directory reads the config directory in a goroutine of its own, so that rounds go on while a
// configuration is loaded.
type Directory struct {
	// Load is the method of a load.Loader. It may take half a minute, and ends early with its context.
	Load func(context.Context, configdir.Snapshot) load.Result
	// Readings are in the order of the reads. The receiver calls Conclude after each.
	Readings chan Reading
	Slow     chan struct{} // has a value after a load took longer than longLoad; buffer of one

	dir          string
	interval     time.Duration // the longest time between two reads
	log          *slog.Logger
	continueFrom func(load.Result) // ContinueFrom of the Loader

	// For the goroutine of Run.
	debouncer  configdir.Debouncer
	gate       *commitGate // nil: commits need no signature
	changed    bool        // the content changed since the last load
	loaded     bool        // a configuration was loaded
	revision   string      // of the last Result or Revision in a Reading
	unfinished bool        // the last load had no time for everything

	inEffect chan load.Result // after each Reading, the configuration that is in effect; buffer of one
	loading  atomic.Pointer[time.Time]
}

// NewDirectory returns a Directory for the folder dir.
func NewDirectory(dir string, interval time.Duration, commits *SignedCommits, log *slog.Logger) *Directory {
	loader := load.NewLoader()
	d := &Directory{
		dir: dir, interval: interval, log: log, Load: loader.Load, continueFrom: loader.ContinueFrom,
		Readings: make(chan Reading), inEffect: make(chan load.Result, 1), Slow: make(chan struct{}, 1),
	}
	if commits != nil {
		d.gate = &commitGate{verify: func(ctx context.Context, s configdir.Snapshot) error {
			by, err := commits.Verify(ctx, s)
			if err == nil {
				log.Info("commit verified", "revision", s.Revision, "scheme", string(by.Scheme), "signer", by.Signer)
			}
			return err
		}}
	}
	return d
}

// LoadingSince returns when the running load of changed files began; zero: no changed files wait to be applied. It may be
// called concurrently.
func (d *Directory) LoadingSince() time.Time {
	if since := d.loading.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// Reading is the outcome of one read of the config directory. At most one of the fields Fault,
// Result and Revision may be set; if none is, the directory has not changed.
type Reading struct {
	// Began and Ended are the steady times of the read.
	Began, Ended time.Time
	// Fault is why the directory cannot be used.
	Fault string
	// Result is a new configuration.
	Result *load.Result
	// Revision is the new revision of a directory whose configuration did not change: "" if it is
	// not known any more. nil: the revision did not change.
	Revision *string
	// Checkout is the checkout of Result or Revision.
	Checkout configdir.Checkout

	loading *time.Time // the value of Directory.loading for Result
}

const (
	// longLoad is how long a load may take before the log and the status mention it.
	longLoad = 3 * time.Second
	// continueAfter is after what time an unfinished load continues.
	continueAfter = 5 * time.Second
)

// Run reads the directory after each event and at the interval, until ctx ends, and once more when a
// read can confirm removals. After each Reading it waits for Conclude: for a file that cannot be read, the next load
// keeps what is in effect, and nothing from a refused configuration.
func (d *Directory) Run(ctx context.Context, events <-chan struct{}) {
	next, tick := time.After(0), time.Tick(d.interval)
	var confirm <-chan time.Time // set by each change
	faulty := false              // at the last Reading
	for {
		select {
		case <-ctx.Done():
			return
		case <-events: // something may have changed
			next = time.After(d.debouncer.DelayAfterEvent(time.Now()))
		case <-tick: // events may have been missed
			next = time.After(0)
		case <-confirm: // the removals since the last change can be confirmed
			next = time.After(0)
		case <-next:
			reading, again, ok := d.read(ctx)
			if again > 0 {
				next = time.After(again)
			}
			if !ok {
				continue
			}
			if reading.Result != nil || faulty && reading.Fault == "" {
				confirm = time.After(configdir.RemovalDelay)
			}
			faulty = reading.Fault != ""
			select {
			case d.Readings <- reading:
			case <-ctx.Done():
				return
			}
			select {
			case result := <-d.inEffect:
				d.continueFrom(result)
			case <-ctx.Done():
				return
			}
		}
	}
}

// read reads the directory. ok is false if there is nothing to apply: the content may be
// incomplete, or ctx ended. again is when to read the directory again, 0: with the next event.
func (d *Directory) read(ctx context.Context) (r Reading, again time.Duration, ok bool) {
	r.Began = time.Now()
	snapshot, err := configdir.Read(d.dir)
	r.Ended = time.Now()
	v := d.debouncer.Observe(r.Began, r.Ended, snapshot, err)
	d.changed = d.changed || v.Apply
	switch {
	case v.Fault != nil:
		r.Fault = v.Fault.Error()
		return r, v.RetryAfter, true
	case v.RetryAfter > 0:
		return Reading{}, v.RetryAfter, false
	}
	if settle, err := d.gate.judge(ctx, snapshot, r.Ended); ctx.Err() != nil || settle > 0 {
		return Reading{}, settle, false
	} else if err != nil {
		r.Fault = err.Error()
		return r, 0, true
	}
	r.Checkout = snapshot.Checkout
	switch {
	case d.changed || d.unfinished:
		result := d.loadFiles(ctx, snapshot, &r)
		if ctx.Err() != nil {
			return Reading{}, 0, false // the result may be that of an interrupted evaluation
		}
		r.Result = &result
		d.changed, d.loaded, d.revision, d.unfinished = false, true, snapshot.Revision, result.Unfinished
		if d.unfinished {
			return r, continueAfter, true
		}
	case d.loaded && snapshot.Revision != d.revision:
		r.Revision, d.revision = &snapshot.Revision, snapshot.Revision
	}
	return r, v.RetryAfter, true
}

// loadFiles loads a snapshot. LoadingSince reports the load until Conclude.
func (d *Directory) loadFiles(ctx context.Context, s configdir.Snapshot, r *Reading) load.Result {
	began := time.Now()
	r.loading = &began
	d.loading.Store(r.loading)
	long := time.AfterFunc(longLoad, func() {
		d.log.Info("loading the configuration takes long: rounds go on with the last valid configuration, without deletions", "dir", d.dir, "files", len(s.Files))
		select {
		case d.Slow <- struct{}{}:
		default: // it has a value
		}
	})
	result := d.Load(ctx, s)
	if !long.Stop() {
		d.log.Info("configuration loaded", "dir", d.dir, "took", time.Since(began).Round(time.Millisecond).String(), "unfinished", result.Unfinished)
	}
	return result
}

// Conclude notes that a Reading was applied or refused. inEffect is the result that is applied now.
func (d *Directory) Conclude(r Reading, inEffect load.Result) {
	if r.loading != nil {
		d.loading.Store(nil)
	}
	d.inEffect <- inEffect
}
