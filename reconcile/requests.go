package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
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

	// errNotLoaded: it is not known yet which images are declared.
	errNotLoaded = errors.New("the config directory is not read yet: retry later")
)

// declaredImage returns the declaration of an image in the last round. The error is errNotLoaded or
// ErrNotDeclared.
func declaredImage(v *status.View, name string) (schema.Image, error) {
	if v == nil || !v.Loaded {
		return schema.Image{}, errNotLoaded
	}
	image, declared := v.Desired.Config.Images[name]
	if !declared {
		return schema.Image{}, ErrNotDeclared
	}
	return image, nil
}

// cleanupRequestTTL is how long a requested clean-up is tried.
const cleanupRequestTTL = time.Minute

// request is what the next Step of a Loop has to do for a client.
type request struct {
	note    func(*requested)   // records the request before the round
	planned func(*status.View) // receives the round; nil: no client waits for it
}

// requested are the copies for which clients requested an action that has not ended, or for which a job
// requested a verification. It is in memory only: a restart drops all requests.
type requested struct {
	verify   map[ident.CopyRef]bool
	cleanups map[ident.CopyRef]cleanupRequest
	uploads  map[ident.CopyRef]bool
}

// cleanupRequest is a requested clean-up.
type cleanupRequest struct {
	expires  time.Time // by the steady clock
	despite  []string  // nodes whose claims do not keep the copy
	accepted bool      // a round has planned the deletion, and its client knows that
}

func newRequested() requested {
	return requested{verify: map[ident.CopyRef]bool{}, cleanups: map[ident.CopyRef]cleanupRequest{}, uploads: map[ident.CopyRef]bool{}}
}

// addTo adds the requests to the desired state, and drops those that expired before the steady
// time now.
func (r *requested) addTo(d *plan.Desired, now time.Time) {
	maps.DeleteFunc(r.cleanups, func(_ ident.CopyRef, c cleanupRequest) bool { return now.After(c.expires) })
	d.Cleanup, d.DespiteNeed = map[ident.CopyRef]bool{}, map[ident.CopyRef][]string{}
	for key, request := range r.cleanups {
		d.Cleanup[key], d.DespiteNeed[key] = true, request.despite
	}
	d.Verify, d.Uploads = maps.Clone(r.verify), maps.Clone(r.uploads)
}

// note drops the requests that jobs fulfilled, and adds the verification of copies that jobs found to be damaged. Requests for other
// actions on these copies stay. An upload request ends with its job: the client has to request the upload again.
func (r *requested) note(reports []report) {
	for _, e := range reports {
		if e.run == nil {
			r.verify[e.damaged] = true
			continue
		}
		switch a := e.run.order.Action; {
		case a.Op == model.Upload:
			delete(r.uploads, a.CopyRef())
		case a.Op == model.Verify && !e.stopped && !a.VerifiesPeer():
			delete(r.verify, a.CopyRef())
		}
	}
}

// dropObsolete drops the requests that a round has shown to be obsolete.
func (r *requested) dropObsolete(d plan.Desired, o plan.Observed, p plan.Plan) {
	maps.DeleteFunc(r.verify, func(key ident.CopyRef, _ bool) bool {
		_, ready := o.Disks[key.Disk].Ready(key.ID)
		_, declared := d.Config.Images[key.ID.Name] // no orphan is verified
		return !(ready && declared) && !o.Running[key]
	})
	deleted := map[ident.CopyRef]bool{}
	for _, a := range p.Actions {
		deleted[a.CopyRef()] = deleted[a.CopyRef()] || a.Op.Deletes()
	}
	for key, c := range r.cleanups {
		gone := o.Disks[key.Disk].Problem == "" && !o.HasCopy(key)
		switch {
		case gone:
			delete(r.cleanups, key)
		case deleted[key]:
			c.accepted = true
			r.cleanups[key] = c
		case c.accepted && o.Failures[key].Op.Deletes(): // a deletion that was cancelled stays requested
		default:
			// The client of a rejected request knows that the copy stays. So the request must not delete the
			// copy later, even if an earlier deletion without a request is tried again.
			delete(r.cleanups, key)
		}
	}
}

// await calls request and returns the outcome that it reports, or context.Cause(ctx).
func await[T any](ctx context.Context, request func(done func(T, error))) (none T, err error) {
	var value T
	var failed error
	reported := make(chan struct{})
	request(func(v T, err error) {
		value, failed = v, err
		close(reported)
	})
	select {
	case <-reported:
		return value, failed
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// Verify requests that the ready copies of a declared image on the disks of this node are read
// again, and returns how many there are. It returns when the verification is planned, so that
// the next View has it. The error is ErrNotDeclared, ErrNotReady, context.Cause(ctx), or another
// error before the config directory was read.
func (l *Loop) Verify(ctx context.Context, image string) (copies int, err error) {
	return await(ctx, func(done func(int, error)) { l.requestVerify(image, done) })
}

func (l *Loop) requestVerify(image string, done func(copies int, err error)) {
	v := l.View()
	declared, err := declaredImage(v, image)
	if err != nil {
		done(0, fmt.Errorf("verify %s: %w", image, err))
		return
	}
	var keys []ident.CopyRef
	for ref, seen := range v.Observed.Disks {
		if _, ready := seen.Ready(declared.ID); ready && v.Desired.Owns(ref) {
			keys = append(keys, ident.CopyRef{Disk: ref, ID: declared.ID})
		}
	}
	if len(keys) == 0 {
		done(0, fmt.Errorf("verify %s: %w", image, ErrNotReady))
		return
	}
	l.queue.add(request{
		note: func(r *requested) {
			for _, key := range keys {
				r.verify[key] = true
			}
		},
		planned: func(*status.View) { done(len(keys), nil) },
	})
}

// Cleanup requests that the copy of an image on a disk of this node is deleted before its clean-up
// interval is over, if it is surplus and no other rule prevents its deletion. An empty uuid stands for
// the uuid of the declared image. A use or need that a node claims does not keep the copy if despite
// names that node. It returns what is planned for the copy: a deletion, which is tried for a minute, or an
// idle action with the reason why there is none. The error is ErrNotDeclared, ErrNotReady,
// context.Cause(ctx), or another error before the config directory was read.
func (l *Loop) Cleanup(ctx context.Context, image, uuid string, on ident.DiskRef, despite ...string) (plan.Action, error) {
	return await(ctx, func(done func(plan.Action, error)) { l.RequestCleanup(image, uuid, on, despite, done) })
}

// EndUses ends the uses of an image by replicas on the disks of this node that are not found any more,
// because a person says that they have ended (U6). An empty uuid stands for all generations. It returns
// when a round has recorded that. The error is context.Cause(ctx).
func (l *Loop) EndUses(ctx context.Context, image, uuid string) error {
	_, err := await(ctx, func(done func(struct{}, error)) {
		l.queue.add(request{
			note:    func(*requested) { l.reconciler.disks.endUses(image, uuid) },
			planned: func(*status.View) { done(struct{}{}, nil) },
		})
	})
	return err
}

// RequestCleanup requests what Cleanup requests, but does not wait: done is called with the outcome,
// at once or by the next Step.
func (l *Loop) RequestCleanup(image, uuid string, on ident.DiskRef, despite []string, done func(plan.Action, error)) {
	v := l.View()
	key := ident.CopyRef{Disk: on, ID: ident.ID{Name: image, UUID: uuid}}
	declared, err := declaredImage(v, image)
	if err != nil && (uuid == "" || errors.Is(err, errNotLoaded)) {
		done(plan.Action{}, fmt.Errorf("clean up %s: %w", image, err))
		return
	}
	if uuid == "" {
		key.ID = declared.ID
	}
	if !v.Desired.Owns(on) || !v.Observed.HasCopy(key) {
		done(plan.Action{}, fmt.Errorf("clean up %s: %w", key, ErrNotReady))
		return
	}
	l.queue.add(request{
		note: func(r *requested) {
			r.cleanups[key] = cleanupRequest{expires: l.reconciler.clock.now().Steady.Add(cleanupRequestTTL), despite: despite}
		},
		planned: func(v *status.View) {
			if !v.Observed.HasCopy(key) { // an earlier request has deleted it meanwhile
				done(plan.Action{}, fmt.Errorf("clean up %s: %w", key, ErrNotReady))
				return
			}
			done(cleanupDecision(v.Plan.Actions, key), nil)
		},
	})
}

// plannedFor returns the action that a round planned for a copy.
func plannedFor(v *status.View, key ident.CopyRef) (plan.Action, bool) {
	for _, a := range v.Plan.Actions {
		if a.CopyRef() == key {
			return a, true
		}
	}
	return plan.Action{}, false
}

// cleanupDecision returns what a plan decides about the requested deletion of a copy: the
// deletion, or else what keeps the copy. A rejection counts more than another action on the copy,
// such as a verification, after which the request would be rejected anyway.
func cleanupDecision(actions []plan.Action, key ident.CopyRef) plan.Action {
	decision := plan.NewAction(model.Wait, key, model.Reason{Code: plan.CodeDesired, Text: "the image is desired on this disk"}, 0)
	found := false
	for _, a := range actions {
		switch {
		case a.CopyRef() != key:
		case a.Op.Deletes(), a.Next.Deletes(), a.Code == plan.CodeDesired:
			return a
		case !found || a.Idle() && !decision.Idle():
			decision, found = a, true
		}
	}
	return decision
}
