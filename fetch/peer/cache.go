package peer

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// StateCache holds what a node tells of itself. Its methods may be called concurrently.
type StateCache struct {
	mu      sync.Mutex
	current *snapshot     // nil until something was published
	changed chan struct{} // closed when the ETag is another one
}

// NewStateCache returns a board with nothing on it.
func NewStateCache() *StateCache { return &StateCache{changed: make(chan struct{})} }

// Publish shows s from now on. Who waits for a change is answered if there is one but
// for what is volatile. Nothing of s may be written to afterwards.
func (b *StateCache) Publish(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil && equalStates(&b.current.state, &s) {
		b.current = &snapshot{state: s, etag: b.current.etag}
		return
	}
	next := &snapshot{state: s, etag: etagOf(s)}
	if b.current == nil || b.current.etag != next.etag {
		close(b.changed)
		b.changed = make(chan struct{})
	}
	b.current = next
}

// latest returns what is shown, nil before there is anything, and what tells of a change.
func (b *StateCache) latest() (*snapshot, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current, b.changed
}

// waitForChange returns what is shown as soon as its ETag is not etag, or when ctx ends.
func (b *StateCache) waitForChange(ctx context.Context, etag string) *snapshot {
	for {
		shown, changed := b.latest()
		if shown == nil || shown.etag != etag {
			return shown
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return shown
		}
	}
}

// equalStates reports whether nothing but what is volatile differs.
func equalStates(a, b *State) bool {
	return a.Node == b.Node && a.Config == b.Config && slices.EqualFunc(a.Disks, b.Disks, equalDisks)
}

func equalDisks(a, b Disk) bool {
	return a.Name == b.Name && a.UUID == b.UUID && a.Problem == b.Problem && a.UsageUnknown == b.UsageUnknown &&
		slices.EqualFunc(a.Copies, b.Copies, equalCopies)
}

func equalCopies(a, b Copy) bool {
	if (a.Failure == nil) != (b.Failure == nil) || a.Failure != nil && a.Failure.withoutVolatile() != b.Failure.withoutVolatile() {
		return false
	}
	a, b = a.withoutVolatile(), b.withoutVolatile()
	a.Failure, b.Failure = nil, nil
	return a == b
}

// snapshot is one State as it was published, and as it is sent.
type snapshot struct {
	state   State
	etag    string
	once    sync.Once
	json    []byte
	gzipped []byte // nil where it is not worth it
}

// minCompressSize is the length below which compressing gains less than it costs.
const minCompressSize = 1 << 10

// encoded returns the JSON of the state, and the same compressed or nil. It is made
// when somebody asks for it: most states are only ever waited on.
func (e *snapshot) encoded() (text, zip []byte) {
	e.once.Do(func() {
		e.json = encode(e.state)
		e.gzipped = compress(e.json)
	})
	return e.json, e.gzipped
}

func encode(s State) []byte {
	text, err := json.Marshal(s)
	if err != nil { // a year beyond 9999, or a number that is none
		panic(fmt.Sprintf("peer: state cannot be encoded: %v", err))
	}
	return text
}

func compress(text []byte) []byte {
	if len(text) < minCompressSize {
		return nil
	}
	var zip bytes.Buffer
	w, err := gzip.NewWriterLevel(&zip, gzip.BestSpeed)
	if err != nil {
		panic("peer: " + err.Error())
	}
	_, _ = w.Write(text) // into memory: neither can fail
	_ = w.Close()
	return zip.Bytes()
}

// etagOf is the same for states that differ in nothing but what is volatile, also of
// another process.
func etagOf(s State) string {
	s.Clock = time.Time{}
	s.Disks = slices.Clone(s.Disks)
	for i := range s.Disks {
		d := &s.Disks[i]
		d.Total, d.Free = 0, 0
		d.Copies = slices.Clone(d.Copies)
		for j, c := range d.Copies {
			d.Copies[j] = c.withoutVolatile()
			if c.Failure != nil {
				t := c.Failure.withoutVolatile()
				d.Copies[j].Failure = &t
			}
		}
	}
	sum := sha256.Sum256(encode(s))
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// withoutVolatile returns c without what is volatile, but for its Try. Times that are the
// same are equal in it.
func (c Copy) withoutVolatile() Copy {
	c.PartBytes = min(c.PartBytes, 1)
	for _, t := range []*time.Time{&c.Verified, &c.Damaged, &c.LastUsed, &c.UnwantedSince} {
		*t = t.UTC().Round(0)
	}
	return c
}

// withoutVolatile returns t without what is volatile.
func (t Failure) withoutVolatile() Failure {
	t.Since, t.RetryIn = 0, 0
	return t
}
