package upload

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const (
	// sessionTTL is how long an upload is kept after its last byte.
	sessionTTL = 24 * time.Hour
	// maxUploads is how many uploads a node takes at a time: each has a part open.
	maxUploads = 4
	// maxEnded is of how many uploads it is known how they ended.
	maxEnded = 64
)

// Ways in which an upload ends without an image and without a failure.
var (
	errTerminated = errors.New("the upload was terminated by its sender")
	errExpired    = fmt.Errorf("the upload expired: nothing came for %v", sessionTTL)
)

// IsDiscarded reports whether err only says that an upload is over.
func IsDiscarded(err error) bool { return errors.Is(err, errTerminated) || errors.Is(err, errExpired) }

// unavailable asks to come back in a moment for a new upload.
func unavailable(format string, args ...any) *httperror.Error {
	return httperror.New(http.StatusServiceUnavailable, format, args...)
}

// locked asks to come back in a moment for an upload that is there. At any other status
// clients take it for gone, and begin anew.
func locked(format string, args ...any) *httperror.Error {
	return httperror.New(http.StatusLocked, format, args...)
}

// Sessions are the uploads of one node: those that requests are served by jobs, at
// most one for each image. Its methods may be called by any goroutine.
type Sessions struct {
	mu      sync.Mutex
	running map[string]*Session // by the image's name
	ended   []info              // how the latest ended that are over
}

// NewSessions returns Sessions of which there are none yet.
func NewSessions() *Sessions { return &Sessions{running: map[string]*Session{}} }

// create makes a new upload, for which a job is yet to open a part.
func (s *Sessions) create(m metadata, size int64) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.running[m.Name]; now != nil {
		return nil, httperror.New(http.StatusConflict, "an upload of %s is under way already: go on with it, or end it by DELETE %s%s", m.Name, Path+"/", now.ID)
	}
	if len(s.running) >= maxUploads {
		names := slices.Sorted(maps.Keys(s.running))
		return nil, unavailable("%d uploads are under way (%s), and more are not taken at a time: GET %s tells how far each is, and DELETE ends one", maxUploads, strings.Join(names, ", "), Path)
	}
	now := newSession(rand.Text(), m, size)
	s.running[m.Name] = now
	return now, nil
}

// Begin returns the upload of an image of which a part with this origin was found, or
// else the one that was announced. The caller has to Fill a part with it, and to End it.
// It waits for the end of one that another job still has, of another generation for
// example.
func (s *Sessions) Begin(ctx context.Context, id disk.ID, found disk.PartSource) (*Session, error) {
	for {
		now, mine, err := s.begin(id, found)
		if mine || err != nil {
			return now, err
		}
		select {
		case <-now.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin returns the upload of an image, and whether the caller is the first who wants it.
func (s *Sessions) begin(id disk.ID, found disk.PartSource) (now *Session, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, left := s.running[id.Name], found.ID == disk.PartFromUpload
	switch {
	case now != nil && now.started:
		return now, false, nil
	case now == nil && !left:
		return nil, false, &fetch.Error{Class: fetch.BadSource, Err: errTerminated} // who announced it is gone
	case now == nil || left && now.ID != found.ETag:
		if now != nil { // it was announced when nobody had seen what is left of another one
			now.end(unavailable("an upload of %s was interrupted, and goes on in a moment", id.Name))
		}
		m, err := parseMetadata(found.Metadata)
		if err != nil || m.Name != id.Name {
			m = metadata{Name: id.Name}
		}
		now = newSession(found.ETag, m, found.Size)
		s.running[id.Name] = now
	}
	now.started = true
	return now, true, nil
}

// End says how the job of an upload ended: nil, the image is ready. kept says
// that the part is still there, and that the upload goes on once a job has it again.
func (s *Sessions) End(one *Session, err error, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[one.Name] == one {
		delete(s.running, one.Name)
	}
	if kept && err != nil {
		one.end(locked("the upload is interrupted, and goes on in a moment: %v", err))
		return
	}
	one.end(err)
	s.ended = append(s.ended, one.info())
	s.ended = s.ended[max(0, len(s.ended)-maxEnded):]
}

// drop forgets an upload that nobody waits for any more, if no job has begun with it.
func (s *Sessions) drop(one *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[one.Name] == one && !one.started {
		delete(s.running, one.Name)
	}
}

// find returns an upload that is under way, or how it ended.
func (s *Sessions) find(id string) (now *Session, past *info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.running {
		if one.ID == id {
			return one, nil
		}
	}
	for i, one := range s.ended {
		if one.ID == id {
			return nil, &s.ended[i]
		}
	}
	return nil, nil
}

// list returns what is under way, sorted by image.
func (s *Sessions) list() []info {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []info{}
	for _, one := range s.running {
		all = append(all, one.info())
	}
	slices.SortFunc(all, func(a, b info) int { return cmp.Compare(a.Image, b.Image) })
	return all
}

// oneLine is err for people, in one line.
func oneLine(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
