package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"html/template"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const (
	// ProgressInterval is how often waiting callers get the progress of running jobs. Progress begins no round.
	ProgressInterval = time.Second
	// keepSnapshot is how long a snapshot is kept without readers.
	keepSnapshot = time.Minute
	// maxPoll is how long a request waits for a change. It is less than the write timeout of the server.
	maxPoll = 40 * time.Second
	// maxRendered limits the memory for the views of one snapshot.
	maxRendered = 64
)

// snapshot is one status document with the views that were rendered from it.
type snapshot struct {
	view *status.View
	doc  status.Status
	made time.Time
	took time.Duration // how long it took to make the document
	busy bool          // jobs of this node run: their progress changes without a round

	mu       sync.Mutex
	rendered map[string]rendered
}

// rendered is the HTML of a view, and what identifies its content.
type rendered struct {
	html template.HTML
	tag  string
	code int // HTTP status
}

// snapshots keeps the last snapshot.
type snapshots struct {
	status func() (*status.View, status.Status)

	mu    sync.Mutex
	last  *snapshot
	clear *time.Timer
}

// current returns the snapshot of the last round, nil before the first one.
func (s *snapshots) current(view *status.View) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if last := s.last; last != nil && last.view == view && (!last.busy || now.Sub(last.made) < ProgressInterval) {
		s.clear.Reset(keepSnapshot)
		return last
	}
	if view == nil {
		return nil
	}
	made, doc := s.status()
	s.last = &snapshot{view: made, doc: doc, made: now, took: time.Since(now), busy: hasRunning(doc), rendered: map[string]rendered{}}
	if s.clear != nil {
		s.clear.Stop()
	}
	s.clear = time.AfterFunc(keepSnapshot, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = nil
	})
	return s.last
}

func hasRunning(doc status.Status) bool {
	for _, image := range doc.Images {
		for _, c := range image.Copies {
			if c.Running && c.Node == doc.Node { // jobs of other nodes change with a round only
				return true
			}
		}
	}
	return false
}

// render returns a view of the snapshot. key identifies the view with its parameters.
func (s *snapshot) render(t *template.Template, key string, of request, v view) (rendered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key = of.role.String() + " " + key
	if r, ok := s.rendered[key]; ok {
		return r, nil
	}
	model, code := v.model(s, of)
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, v.template, model); err != nil {
		return rendered{}, err
	}
	sum := sha256.Sum256(b.Bytes())
	r := rendered{template.HTML(b.String()), hex.EncodeToString(sum[:8]), code} // escaped by the template
	if len(s.rendered) >= maxRendered {
		clear(s.rendered) // a reader of many views must not keep later views out
	}
	s.rendered[key] = r
	return r, nil
}

// WaitForChange waits until a status document may differ from the last one: until next is closed, or for ProgressInterval if busy
// (jobs run). It first waits for 9 times took, the time to make the last document, so a large cluster costs a tenth of a processor.
func WaitForChange(ctx context.Context, next <-chan struct{}, took time.Duration, busy bool) {
	select {
	case <-time.After(9 * took):
	case <-ctx.Done():
		return
	}
	var progress <-chan time.Time
	if busy {
		progress = time.After(ProgressInterval)
	}
	select {
	case <-next:
	case <-progress:
	case <-ctx.Done():
	}
}
