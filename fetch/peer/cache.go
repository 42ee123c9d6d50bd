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

// Board holds what a node tells of itself. Its methods may be called concurrently.
type Board struct {
	mu      sync.Mutex
	shown   *edition      // nil until something was published
	changed chan struct{} // closed when the ETag is another one
}

// NewBoard returns a board with nothing on it.
func NewBoard() *Board { return &Board{changed: make(chan struct{})} }

// Publish shows s from now on. Who waits for a change is answered if there is one but
// for what is volatile. Nothing of s may be written to afterwards.
func (b *Board) Publish(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != nil && alike(&b.shown.state, &s) {
		b.shown = &edition{state: s, etag: b.shown.etag}
		return
	}
	next := &edition{state: s, etag: etagOf(s)}
	if b.shown == nil || b.shown.etag != next.etag {
		close(b.changed)
		b.changed = make(chan struct{})
	}
	b.shown = next
}

// now returns what is shown, nil before there is anything, and what tells of a change.
func (b *Board) now() (*edition, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shown, b.changed
}

// wait returns what is shown as soon as its ETag is not etag, or when ctx ends.
func (b *Board) wait(ctx context.Context, etag string) *edition {
	for {
		shown, changed := b.now()
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

// alike reports whether nothing but what is volatile differs.
func alike(a, b *State) bool {
	return a.Node == b.Node && a.Config == b.Config && slices.EqualFunc(a.Disks, b.Disks, alikeDisk)
}

func alikeDisk(a, b Disk) bool {
	return a.Name == b.Name && a.UUID == b.UUID && a.Problem == b.Problem && a.Unclear == b.Unclear &&
		slices.EqualFunc(a.Copies, b.Copies, alikeCopy)
}

func alikeCopy(a, b Copy) bool {
	if (a.Try == nil) != (b.Try == nil) || a.Try != nil && a.Try.lasting() != b.Try.lasting() {
		return false
	}
	a, b = a.lasting(), b.lasting()
	a.Try, b.Try = nil, nil
	return a == b
}

// edition is one State as it was published, and as it is sent.
type edition struct {
	state State
	etag  string
	once  sync.Once
	text  []byte
	zip   []byte // nil where it is not worth it
}

// leastZip is the length below which compressing gains less than it costs.
const leastZip = 1 << 10

// encoded returns the JSON of the state, and the same compressed or nil. It is made
// when somebody asks for it: most states are only ever waited on.
func (e *edition) encoded() (text, zip []byte) {
	e.once.Do(func() {
		e.text = encode(e.state)
		e.zip = compress(e.text)
	})
	return e.text, e.zip
}

func encode(s State) []byte {
	text, err := json.Marshal(s)
	if err != nil { // a year beyond 9999, or a number that is none
		panic(fmt.Sprintf("peer: state cannot be encoded: %v", err))
	}
	return text
}

func compress(text []byte) []byte {
	if len(text) < leastZip {
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
			d.Copies[j] = c.lasting()
			if c.Try != nil {
				t := c.Try.lasting()
				d.Copies[j].Try = &t
			}
		}
	}
	sum := sha256.Sum256(encode(s))
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// lasting returns c without what is volatile, but for its Try. Times that are the
// same are equal in it.
func (c Copy) lasting() Copy {
	c.PartBytes = min(c.PartBytes, 1)
	for _, t := range []*time.Time{&c.Verified, &c.Damaged, &c.LastUsed, &c.UnwantedSince} {
		*t = t.UTC().Round(0)
	}
	return c
}

// lasting returns t without what is volatile.
func (t Try) lasting() Try {
	t.Since, t.Again = 0, 0
	return t
}
