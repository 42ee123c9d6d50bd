package peer

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// StateCache contains the state that a node publishes. It is safe for concurrent use.
type StateCache struct {
	mu      sync.Mutex
	current *snapshot     // nil before the first Publish
	changed chan struct{} // closed, and replaced, when the ETag changes
}

// NewStateCache returns an empty cache.
func NewStateCache() *StateCache { return &StateCache{changed: make(chan struct{})} }

// Publish replaces the state. If anything except volatile values changed (see withoutVolatile),
// pending long polls receive the new state. The caller must not modify s, or anything that s refers
// to, after the call.
func (c *StateCache) Publish(s model.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Usually a round changes nothing, and comparing is much cheaper than encoding.
	if c.current != nil && EqualStates(&c.current.state, &s) {
		c.current = &snapshot{state: s, etag: c.current.etag}
		return
	}
	next := &snapshot{state: s, etag: etagOf(s)}
	if c.current == nil || c.current.etag != next.etag {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.current = next
}

// latest returns the published snapshot (nil before the first Publish) and a channel that is closed when
// the ETag changes.
func (c *StateCache) latest() (*snapshot, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current, c.changed
}

// waitForChange returns the published snapshot when its ETag differs from etag, or when ctx ends.
func (c *StateCache) waitForChange(ctx context.Context, etag string) *snapshot {
	for {
		current, changed := c.latest()
		if current == nil || current.etag != etag {
			return current
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return current
		}
	}
}

// EqualStates reports whether two states are equal except for volatile values.
func EqualStates(a, b *model.Node) bool {
	return a.Node == b.Node && a.ConfigDigest == b.ConfigDigest && a.Mark == b.Mark && slices.Equal(a.Conditions, b.Conditions) && maps.EqualFunc(a.Disks, b.Disks, equalDisks)
}

func equalDisks(a, b model.Disk) bool {
	return a.UUID == b.UUID && a.Problem == b.Problem && a.ReadOnly == b.ReadOnly && a.UsageUnknown == b.UsageUnknown && maps.EqualFunc(a.Copies, b.Copies, equalCopies)
}

func equalCopies(a, b model.Copy) bool {
	return a == b || reflect.DeepEqual(withoutVolatile(a), withoutVolatile(b)) // nearly always a == b
}

// snapshot is one published state with its encodings. It is immutable.
type snapshot struct {
	state   model.Node
	etag    string
	once    sync.Once // guards the encodings
	json    []byte
	gzipped []byte // nil if the JSON is shorter than minCompressSize
}

// minCompressSize is the minimum length of JSON for which compression is worthwhile.
const minCompressSize = 1 << 10

// encoded returns the JSON of the state, and the compressed JSON or nil. It encodes the state at the
// first call, because most snapshots are replaced before a peer requests them.
func (s *snapshot) encoded() (plain, gzipped []byte) {
	s.once.Do(func() {
		s.json = encode(s.state)
		s.gzipped = compress(s.json)
	})
	return s.json, s.gzipped
}

// encode returns the JSON of a state as printable text: the messages in a state may contain text of an
// upstream, and people may read them on a terminal.
func encode(s model.Node) []byte {
	s.Version = model.Version
	encoded, err := json.Marshal(s)
	if err != nil { // a year after 9999, or a NaN
		panic(fmt.Sprintf("peer: state cannot be encoded: %v", err))
	}
	return text.PrintableJSON(encoded)
}

func compress(text []byte) []byte {
	if len(text) < minCompressSize {
		return nil
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic("peer: " + err.Error())
	}
	_, _ = w.Write(text) // Write and Close write to memory and cannot fail
	_ = w.Close()
	return out.Bytes()
}

// etagOf returns the ETag of a state. States that differ only in volatile values have the same ETag,
// even in different processes: after a restart of the manager, peers observe no change.
func etagOf(s model.Node) string {
	s.Clock = time.Time{}
	s.Disks = maps.Clone(s.Disks)
	for name, d := range s.Disks {
		d.Space = model.Space{}
		d.Copies = maps.Clone(d.Copies)
		for id, c := range d.Copies {
			d.Copies[id] = withoutVolatile(c)
		}
		s.Disks[name] = d
	}
	sum := sha256.Sum256(encode(s))
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// withoutVolatile returns c without the values that change all the time, and with comparable times.
// It keeps whether there is a partial file, but not the size of the file.
func withoutVolatile(c model.Copy) model.Copy {
	c.PartBytes, c.Reason.Text = min(c.PartBytes, 1), ""
	if c.Need != nil {
		need := *c.Need
		c.Need = &need
	}
	for _, t := range c.Times() {
		*t = t.UTC().Round(0)
	}
	if c.Failure != nil {
		f := *c.Failure
		f.Since, f.RetryAt = time.Time{}, time.Time{}
		c.Failure = &f
	}
	return c
}
