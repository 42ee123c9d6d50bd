package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Errors of requests to a Loop.
var (
	// ErrNotDeclared: no image of that name is declared.
	ErrNotDeclared = errors.New("not declared")
	// ErrNotReady: no disk of this node has a copy that the request applies to.
	ErrNotReady = errors.New("no ready copy on the disks of this node")
)

// cleanupRequestTTL is how long a requested clean-up is tried.
const cleanupRequestTTL = time.Minute

// request is what the next Step of a Loop has to do.
type request struct {
	note    func()             // records the request, before the round
	planned func(*status.View) // receives the round; nil: nobody waits for it
}

// requests are the requests since the last Step. Its methods may be called concurrently.
type requests struct {
	ready   chan struct{} // has a value after a request came
	mu      sync.Mutex
	pending []request
}

func newRequests() *requests { return &requests{ready: make(chan struct{}, 1)} }

func (q *requests) add(r request) {
	q.mu.Lock()
	q.pending = append(q.pending, r)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default: // there is a value
	}
}

func (q *requests) take() []request {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.pending
	q.pending = nil
	return taken
}

// outcome is what a request returns.
type outcome[T any] struct {
	value T
	err   error
}

// await returns the outcome that request reports, or the cause of the end of ctx.
func await[T any](ctx context.Context, request func(done func(T, error))) (T, error) {
	outcomes := make(chan outcome[T], 1)
	request(func(value T, err error) { outcomes <- outcome[T]{value, err} })
	select {
	case o := <-outcomes:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// Verify requests that the ready copies of a declared image on the disks of this node are read
// again, and returns how many there are. It returns when the verification is planned, so that
// the next View has it.
func (l *Loop) Verify(ctx context.Context, image string) (copies int, err error) {
	return await(ctx, func(done func(int, error)) { l.requestVerify(image, done) })
}

func (l *Loop) requestVerify(image string, done func(copies int, err error)) {
	v := l.View()
	if v == nil {
		done(0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared))
		return
	}
	declared, ok := v.Desired.Config.Images[image]
	if !ok {
		done(0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared))
		return
	}
	var keys []plan.CopyRef
	for ref, seen := range v.Observed.Disks {
		if _, ready := seen.Ready(declared.ID); ready && v.Desired.Owns(ref) {
			keys = append(keys, plan.CopyRef{Disk: ref, ID: declared.ID})
		}
	}
	if len(keys) == 0 {
		done(0, fmt.Errorf("verify %s: %w", image, ErrNotReady))
		return
	}
	l.requests.add(request{
		note: func() {
			for _, key := range keys {
				l.verifyRequested[key] = true
			}
		},
		planned: func(*status.View) { done(len(keys), nil) },
	})
}

// Cleanup requests that the copy of an image on a disk of this node is deleted before its
// clean-up interval is over, if it is surplus and nothing else speaks against it. An empty uuid
// is that of the declared image. It returns what is planned for the copy: a deletion, which is
// tried for a minute, or why there is none.
func (l *Loop) Cleanup(ctx context.Context, image, uuid string, on schema.DiskRef) (plan.Action, error) {
	return await(ctx, func(done func(plan.Action, error)) { l.RequestCleanup(image, uuid, on, done) })
}

// RequestCleanup is Cleanup that does not wait: done is called with the outcome, at once or by
// the next Step.
func (l *Loop) RequestCleanup(image, uuid string, on schema.DiskRef, done func(plan.Action, error)) {
	v := l.View()
	key := plan.CopyRef{Disk: on, ID: disk.ID{Name: image, UUID: uuid}}
	if uuid == "" {
		declared, ok := schema.Image{}, false
		if v != nil {
			declared, ok = v.Desired.Config.Images[image]
		}
		if !ok {
			done(plan.Action{}, fmt.Errorf("clean up %s: %w", image, ErrNotDeclared))
			return
		}
		key.ID = declared.ID
	}
	if v == nil || !v.Desired.Owns(on) || !v.Observed.HasCopy(key) {
		done(plan.Action{}, fmt.Errorf("clean up %s: %w", key, ErrNotReady))
		return
	}
	l.requests.add(request{
		note: func() { l.cleanups[key] = l.reconciler.clock.now().Steady.Add(cleanupRequestTTL) },
		planned: func(v *status.View) {
			a, ok := plannedFor(v, key)
			if !ok {
				a = plan.NewAction(plan.Wait, key, plan.Reason{Code: plan.CodeDesired, Text: "the image is desired on this disk"}, 0)
			}
			done(a, nil)
		},
	})
}

// plannedFor returns the action that a round plans for a copy.
func plannedFor(v *status.View, key plan.CopyRef) (plan.Action, bool) {
	for _, a := range v.Plan.Actions {
		if a.CopyRef() == key {
			return a, true
		}
	}
	return plan.Action{}, false
}

// pendingCleanups returns the copies whose clean-up was requested, and drops expired requests.
func (l *Loop) pendingCleanups() map[plan.CopyRef]bool {
	now, keys := l.reconciler.clock.now().Steady, map[plan.CopyRef]bool{}
	maps.DeleteFunc(l.cleanups, func(_ plan.CopyRef, until time.Time) bool { return now.After(until) })
	for key := range l.cleanups {
		keys[key] = true
	}
	return keys
}

// dropRejectedCleanups drops the requests for copies that stay: the client was told so, and the
// copy must not be deleted later. A deletion that is only tried again stays requested.
func (l *Loop) dropRejectedCleanups(p plan.Plan, o plan.Observed) {
	deleted := map[plan.CopyRef]bool{}
	for _, a := range p.Actions {
		deleted[a.CopyRef()] = deleted[a.CopyRef()] || a.Op.Deletes()
	}
	maps.DeleteFunc(l.cleanups, func(key plan.CopyRef, _ time.Time) bool { return !deleted[key] && !o.Failures[key].Op.Deletes() })
}

// dropFinishedCleanups drops the requests for copies that do not exist any more.
func (l *Loop) dropFinishedCleanups(o plan.Observed) {
	maps.DeleteFunc(l.cleanups, func(key plan.CopyRef, _ time.Time) bool {
		return o.Disks[key.Disk].Problem == "" && !o.HasCopy(key)
	})
}

// Uploads returns the server for clients that upload images.
func (l *Loop) Uploads() *upload.Server {
	return upload.NewServer(l.reconciler.local.jobs.uploads, uploadHost{l})
}

// uploadHost starts the jobs that an upload.Server needs.
type uploadHost struct{ loop *Loop }

func (h uploadHost) Begin(ctx context.Context, image string, digest disk.Digest) error {
	_, err := await(ctx, func(done func(struct{}, error)) {
		h.loop.RequestUpload(image, digest, func(_ plan.CopyRef, err error) { done(struct{}{}, err) })
	})
	return err
}

func (h uploadHost) Interrupted(id string) bool { return h.loop.interrupted(id) }

// RequestUpload requests a job that receives the upload of a declared image, on the best disk of
// this node. digest is that of the file, zero if the client does not know it. done is called
// with the copy when the job is planned, or with an *httperror.Error, at once or by the next Step.
func (l *Loop) RequestUpload(image string, digest disk.Digest, done func(plan.CopyRef, error)) {
	v := l.View()
	if v == nil || !v.Loaded {
		done(plan.CopyRef{}, httperror.New(http.StatusServiceUnavailable, "the config directory is not read yet"))
		return
	}
	declared, ok := v.Desired.Config.Images[image]
	if !ok {
		done(plan.CopyRef{}, httperror.New(http.StatusNotFound, "no image %s is declared", image))
		return
	}
	key, err := v.Desired.UploadTo(v.Observed, declared, digest)
	if no, ok := errors.AsType[*plan.UploadError](err); ok && no.Temporary {
		done(plan.CopyRef{}, httperror.New(http.StatusServiceUnavailable, "%s", no.Text))
		return
	} else if err != nil {
		done(plan.CopyRef{}, httperror.New(http.StatusConflict, "%v", err))
		return
	}
	l.requests.add(request{
		note: func() { l.uploads[key] = true },
		planned: func(v *status.View) {
			a, ok := plannedFor(v, key)
			if a.Op == plan.Upload {
				done(key, nil)
				return
			}
			if !ok {
				a = plan.Action{Image: image, Reason: plan.Reason{Code: plan.CodeObserveOnly, Text: "the manager is in observe-only mode"}}
			}
			l.requests.add(request{
				note:    func() { delete(l.uploads, key) },
				planned: func(*status.View) { done(plan.CopyRef{}, uploadRejected(a)) },
			})
		},
	})
}

// uploadRejected returns the error for an upload where another action is planned for the copy. It
// is temporary if the existing file may turn out to be the image, or if there is a time to wait
// for; otherwise a person has to act first.
func uploadRejected(planned plan.Action) error {
	if settles := planned.Op == plan.Verify || planned.Op == plan.Adopt; settles || !planned.Until.IsZero() {
		return httperror.New(http.StatusServiceUnavailable, "%s cannot be uploaded yet: %s", planned.Image, planned.Text)
	}
	return httperror.New(http.StatusConflict, "%s cannot be uploaded: %s", planned.Image, planned.Text)
}

// interrupted reports whether an upload continues here: a partial file of it is on a disk of
// this node, and the image is not ready on any disk. It is true if that is not known yet.
func (l *Loop) interrupted(id string) bool {
	v := l.View()
	if v == nil || !v.Loaded {
		return true
	}
	for ref, seen := range v.Observed.Disks {
		for image, c := range seen.Copies {
			if !v.Desired.Owns(ref) || c.PartSourceID != disk.PartFromUpload || c.State == disk.Ready {
				continue
			}
			if d, open := l.reconciler.readable(ref.Disk); open && folderOf(d).PartSource(image).ETag == id {
				declared := v.Desired.Config.Images[image.Name]
				return plan.DeclaresUpload(declared, image) && len(v.Desired.ReadyCopies(v.Observed, declared)) == 0
			}
		}
	}
	return false
}
