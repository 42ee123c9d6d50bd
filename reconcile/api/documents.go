package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/reconcile/web"
)

// documents makes status documents. It may be used concurrently.
type documents struct {
	loop  *reconcile.Loop
	peers *peer.Server

	// mu lets one document be made at a time: this takes many times the memory of the document, and
	// any number of callers can request one at once.
	mu sync.Mutex
	// etag is the ETag of the document of view with progress. It is made once for all callers that wait for a change.
	etag     string
	view     *status.View
	progress string
}

// status responds with the status. With If-None-Match and the parameter "wait" it is a long poll.
func (s server) status(w http.ResponseWriter, r *http.Request) {
	wait, refused := peer.ParseWait(r)
	if refused != nil {
		refused.Write(w)
		return
	}
	known := r.Header.Get("If-None-Match")
	if wait > 0 && known != "" {
		// The write timeout of the server runs since the request arrived. If the deadline cannot be set there is no timeout.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + writeTimeout))
		if s.documents.wait(r.Context(), known, wait); r.Context().Err() != nil {
			peer.ErrShutdown.Write(w) // or the client has disconnected, and receives nothing
			return
		}
	}
	document, etag, ok := s.documents.make(known)
	if !ok {
		errNotRead.Write(w)
		return
	}
	w.Header().Set("ETag", etag)
	if document == nil {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document) // fails if the caller has closed the connection
}

// make returns the JSON of the status and its ETag. document is nil if the ETag is known. ok is false before the first round.
func (d *documents) make(known string) (document []byte, etag string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.current()
	if !ok {
		return nil, "", false
	}
	if d.etag == known {
		return nil, known, true
	}
	if s == nil {
		_, made := d.loop.Status()
		s = &made
	}
	s.AddSends(d.peers.Sends)
	return encode(s), d.etag, true
}

// current updates the ETag. s is the status if current had to make one, and nil otherwise. ok is false before the first
// round. The caller holds d.mu.
func (d *documents) current() (s *status.Status, ok bool) {
	view, transfers := d.loop.View(), d.loop.Transfers()
	if view == nil {
		return nil, false
	}
	progress := progressOf(transfers)
	if view == d.view && progress == d.progress {
		return nil, true
	}
	view, made := d.loop.Status() // perhaps of a later round
	content := made.ContentSum()
	sum := sha256.Sum256(append(content[:], progress...))
	d.view, d.progress, d.etag = view, progress, `"`+hex.EncodeToString(sum[:16])+`"`
	return &made, true
}

// changed reports whether the status has another ETag than the known one.
func (d *documents) changed(known string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.current()
	return !ok || d.etag != known
}

// wait returns when the ETag of the status differs from known, after the duration most, or when ctx ends.
func (d *documents) wait(ctx context.Context, known string, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for ctx.Err() == nil {
		next, began := d.loop.NextRound(), time.Now()
		if d.changed(known) {
			return
		}
		web.WaitForChange(ctx, next, time.Since(began), true)
	}
}

// progressOf returns a text that changes with the running transfers and with each whole percent of their progress.
func progressOf(transfers map[ident.CopyRef]job.Transfer) string {
	var all []string
	for ref, t := range transfers {
		done, total := t.Progress.Done.Load(), t.Progress.Total.Load()
		all = append(all, fmt.Sprint(ref, t.Action.Op, done > 0, done*100/max(total, 1)))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
