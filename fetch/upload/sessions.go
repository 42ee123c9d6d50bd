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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const (
	// sessionTTL is the time after the last byte for which an upload is kept.
	sessionTTL = 24 * time.Hour
	// maxUploads is the maximum number of concurrent uploads of a node: each has a partial file open.
	maxUploads = 4
	// maxEnded is the maximum number of ended uploads that are kept in memory.
	maxEnded = 64
)

// Errors of a discarded upload, which is neither successful nor failed.
var (
	errTerminated = errors.New("the client terminated the upload")
	// ErrExpired: an upload received no bytes for sessionTTL.
	ErrExpired = fmt.Errorf("the upload expired: no bytes for %v", sessionTTL)
)

// IsDiscarded reports whether err means that the client terminated the upload, or that the upload
// expired.
func IsDiscarded(err error) bool { return errors.Is(err, errTerminated) || errors.Is(err, ErrExpired) }

// unavailable returns the error for a new upload that may succeed later.
func unavailable(format string, args ...any) *httperror.Error {
	return httperror.New(http.StatusServiceUnavailable, format, args...)
}

// locked returns the error for an existing upload that will be available again. After any other
// status, clients would regard the upload as lost and start again.
func locked(format string, args ...any) *httperror.Error {
	return httperror.New(http.StatusLocked, format, args...)
}

// Sessions are the uploads of one node, at most one per image. It is safe for concurrent use.
type Sessions struct {
	mu      sync.Mutex
	running map[string]*Session // by image name
	ended   []*Session          // the uploads that ended last
}

// NewSessions returns an empty Sessions.
func NewSessions() *Sessions { return &Sessions{running: map[string]*Session{}} }

// create adds a new upload. Its job has not started yet.
func (s *Sessions) create(m metadata, size int64) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.running[m.Name]; now != nil {
		return nil, httperror.New(http.StatusConflict, "an upload of %s is already in progress: resume it, or end it with DELETE %s%s", m.Name, Path+"/", now.ID)
	}
	if len(s.running) >= maxUploads {
		names := slices.Sorted(maps.Keys(s.running))
		return nil, unavailable("%d uploads are in progress (%s), which is the maximum: GET %s lists them, and DELETE ends one", maxUploads, strings.Join(names, ", "), Path)
	}
	now := newSession(rand.Text(), m, size)
	s.running[m.Name] = now
	return now, nil
}

// Begin returns the session for a job. found is the source of the partial file on the disk. If it is an
// upload, Begin returns the session of that upload. Otherwise, the method create made the session. If another job still
// has the session, for example a job of another generation, Begin waits until that job ends. The caller
// must call Session.Fill and then End.
func (s *Sessions) Begin(ctx context.Context, id ident.ID, found disk.PartSource) (*Session, error) {
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

// begin returns the session of an image. mine is true if no other job has the session: the caller has it now.
func (s *Sessions) begin(id ident.ID, found disk.PartSource) (session *Session, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, left := s.running[id.Name], found.Kind == model.PartFromUpload
	switch {
	case now != nil && now.started:
		return now, false, nil
	case now == nil && !left:
		return nil, false, &fetch.Error{Class: fetch.BadSource, Err: errTerminated} // the client has disconnected
	case now == nil || left && now.ID != found.ETag:
		if now != nil { // the client created it before the interrupted upload was found
			now.end(unavailable("an upload of %s was interrupted, and resumes soon", id.Name))
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

// End ends a session after its job: err is nil if the image is ready. kept means that the partial
// file was kept, and that the next job resumes the upload.
func (s *Sessions) End(one *Session, err error, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[one.Name] == one {
		delete(s.running, one.Name)
	}
	if kept && err != nil {
		one.end(locked("the upload is interrupted, and resumes soon: %v", err))
		return
	}
	one.end(err)
	s.ended = append(s.ended, one)
	s.ended = s.ended[max(0, len(s.ended)-maxEnded):]
}

// drop removes a session without a job after its client has disconnected.
func (s *Sessions) drop(one *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[one.Name] == one && !one.started {
		delete(s.running, one.Name)
	}
}

// find returns the session of an upload that is in progress or ended recently; nil: there is no such upload.
func (s *Sessions) find(id string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range slices.AppendSeq(slices.Clone(s.ended), maps.Values(s.running)) {
		if one.ID == id {
			return one
		}
	}
	return nil
}

// list returns the uploads in progress, sorted by image.
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

// oneLine returns the text of err, with its hint, in one line.
func oneLine(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
