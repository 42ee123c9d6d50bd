package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Errors of what is asked of a Loop.
var (
	// ErrNotDeclared: no image of that name is declared.
	ErrNotDeclared = errors.New("not declared")
	// ErrNotReady: there is no copy here that could be asked about.
	ErrNotReady = errors.New("no ready copy on the disks of this node")
)

// cleanupRequestTTL is how long a copy that was to be cleaned up and could not be is still
// to go as soon as it can.
const cleanupRequestTTL = time.Minute

// request is what is wanted of the goroutine of a Loop.
type request struct {
	note    func()
	planned chan *status.View // gets the next round
}

func (a request) answer(v *status.View) {
	if a.planned != nil {
		a.planned <- v
	}
}

// request has note called by the goroutine of the loop, and returns the next round.
func (l *Loop) request(ctx context.Context, note func()) (*status.View, error) {
	request := request{note, make(chan *status.View, 1)}
	select {
	case l.requests <- request:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case v := <-request.planned:
		return v, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Verify asks for the ready copies of a declared image on the disks of this node
// to be read again, and returns how many there are. It waits until that is
// planned, so that the next View has it, and not until it is done.
func (l *Loop) Verify(ctx context.Context, image string) (copies int, err error) {
	v := l.View()
	if v == nil {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared)
	}
	declared, ok := v.Desired.Config.Images[image]
	if !ok {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared)
	}
	var keys []plan.CopyRef
	for ref, seen := range v.Observed.Disks {
		if _, ready := seen.Ready(declared.ID); ready && v.Desired.Owns(ref) {
			keys = append(keys, plan.CopyRef{Disk: ref, ID: declared.ID})
		}
	}
	if len(keys) == 0 {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotReady)
	}
	_, err = l.request(ctx, func() {
		for _, key := range keys {
			l.verifyRequested[key] = true
		}
	})
	return len(keys), err
}

// Cleanup asks for the copy of an image on a disk of this node to go before its
// interval is over, if nobody wants it there and the image can do without. An empty
// uuid is that of the declared image. It returns what is planned about the copy: a
// deletion, which is tried for a minute, or why there is none.
func (l *Loop) Cleanup(ctx context.Context, image, uuid string, on schema.DiskRef) (plan.Action, error) {
	v := l.View()
	key := plan.CopyRef{Disk: on, ID: disk.ID{Name: image, UUID: uuid}}
	if uuid == "" {
		declared, ok := schema.Image{}, false
		if v != nil {
			declared, ok = v.Desired.Config.Images[image]
		}
		if !ok {
			return plan.Action{}, fmt.Errorf("clean up %s: %w", image, ErrNotDeclared)
		}
		key.ID = declared.ID
	}
	if v == nil || !v.Desired.Owns(on) || !v.Observed.HasCopy(key) {
		return plan.Action{}, fmt.Errorf("clean up %s: %w", key, ErrNotReady)
	}
	v, err := l.request(ctx, func() { l.cleanups[key] = time.Now().Add(cleanupRequestTTL) })
	if err != nil {
		return plan.Action{}, err
	}
	for _, a := range v.Plan.Actions {
		if a.CopyRef() == key {
			return a, nil
		}
	}
	return plan.NewAction(plan.Wait, key, "the configuration wants a copy on this disk", 0), nil
}

// pendingCleanups are the copies that somebody asked to have removed, not too long ago.
func (l *Loop) pendingCleanups() map[plan.CopyRef]bool {
	now, keys := time.Now(), map[plan.CopyRef]bool{}
	maps.DeleteFunc(l.cleanups, func(_ plan.CopyRef, until time.Time) bool { return now.After(until) })
	for key := range l.cleanups {
		keys[key] = true
	}
	return keys
}

// dropRejectedCleanups forgets what was asked about copies that stay: it is said to who asked,
// and must not come true later. What is only tried again in a moment holds.
func (l *Loop) dropRejectedCleanups(p plan.Plan, o plan.Observed) {
	goes := map[plan.CopyRef]bool{}
	for _, a := range p.Actions {
		goes[a.CopyRef()] = goes[a.CopyRef()] || a.Op.Deletes()
	}
	maps.DeleteFunc(l.cleanups, func(key plan.CopyRef, _ time.Time) bool { return !goes[key] && !o.Failures[key].Op.Deletes() })
}

// dropFinishedCleanups forgets what was asked about copies that are not there any more.
func (l *Loop) dropFinishedCleanups(o plan.Observed) {
	maps.DeleteFunc(l.cleanups, func(key plan.CopyRef, _ time.Time) bool {
		return o.Disks[key.Disk].Problem == "" && !o.HasCopy(key)
	})
}
