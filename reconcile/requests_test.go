package reconcile

import (
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestRequestedCleanupReturnsTheActionThatDecidesAboutIt(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
	other := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk2"}, ID: key.ID}
	action := func(op model.Op, code model.Code) plan.Action {
		return plan.NewAction(op, key, model.Reason{Code: code}, 0)
	}
	verify := action(model.Verify, plan.CodeVerifyRequested)
	wait := action(model.Wait, plan.CodeTooFewReady)
	wait.Next = model.Cleanup
	for _, tt := range []struct {
		name    string
		actions []plan.Action
		want    model.Code
	}{
		{"nothing is planned", nil, plan.CodeDesired},
		{"only another copy is deleted", []plan.Action{plan.NewAction(model.Cleanup, other, model.Reason{Code: plan.CodeSurplus}, 0)}, plan.CodeDesired},
		{"the copy is deleted", []plan.Action{action(model.Cleanup, plan.CodeSurplus)}, plan.CodeSurplus},
		{"only a verification is planned", []plan.Action{verify}, plan.CodeVerifyRequested},
		{"a verification of a desired copy", []plan.Action{verify, action(model.Wait, plan.CodeDesired)}, plan.CodeDesired},
		{"a verification before a wait for another image", []plan.Action{verify, action(model.Wait, plan.CodeSourceOfSuspended)}, plan.CodeSourceOfSuspended},
		{"a verification before a wait", []plan.Action{verify, wait}, plan.CodeTooFewReady},
	} {
		if got := cleanupDecision(tt.actions, key); got.Code != tt.want {
			t.Errorf("%s: the reason is %q, want %q", tt.name, got.Code, tt.want)
		}
	}
}

// A client whose request was rejected knows that the copy stays. The request must end then, also if
// an earlier deletion without a request was cancelled and will be tried again: with another
// configuration it would delete the copy before its clean-up interval.
func TestRejectedCleanupIsNotTriedLater(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
	seen := plan.Observed{
		Disks:    map[ident.DiskRef]model.Disk{key.Disk: {Copies: map[ident.ID]model.Copy{key.ID: {}}}},
		Failures: map[ident.CopyRef]model.Failure{key: {Op: model.Cleanup, Message: "not deleted: kept until 2 copies are ready"}},
	}
	kept := plan.Plan{Actions: []plan.Action{plan.NewAction(model.Wait, key, model.Reason{Code: plan.CodeTooFewReady}, 0)}}
	deleting := plan.Plan{Actions: []plan.Action{plan.NewAction(model.Cleanup, key, model.Reason{Code: plan.CodeSurplus}, 0)}}
	for _, tt := range []struct {
		name   string
		rounds []plan.Plan
		want   bool // the request is in force after the rounds
	}{
		{"rejected", []plan.Plan{kept}, false},
		{"accepted", []plan.Plan{deleting}, true},
		{"accepted, then cancelled and tried again", []plan.Plan{deleting, kept}, true},
	} {
		r := newRequested()
		r.cleanups[key] = cleanupRequest{expires: time.Now().Add(time.Hour)}
		for _, p := range tt.rounds {
			r.dropObsolete(plan.Desired{}, seen, p)
		}
		d := plan.Desired{}
		r.addTo(&d, time.Now())
		if d.Cleanup[key] != tt.want {
			t.Errorf("%s: the request is in force: %t, want %t", tt.name, d.Cleanup[key], tt.want)
		}
	}
}

// A copy of an image that is not declared any more is never verified. If the image is declared again,
// its copy must not be read because of a request from before.
func TestVerificationIsDroppedWithTheDeclaration(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
	older := ident.CopyRef{Disk: key.Disk, ID: ident.ID{Name: "parrot", UUID: "00000001"}}
	seen := plan.Observed{Disks: map[ident.DiskRef]model.Disk{key.Disk: {Copies: map[ident.ID]model.Copy{
		key.ID: {ID: key.ID, State: model.Ready}, older.ID: {ID: older.ID, State: model.Ready},
	}}}}
	declared := plan.Desired{Config: schema.Config{Images: map[string]schema.Image{"parrot": {ID: key.ID}}}}
	running := seen
	running.Running = map[ident.CopyRef]bool{older: true}
	r := newRequested()
	r.verify[key], r.verify[older] = true, true
	for _, step := range []struct {
		name string
		d    plan.Desired
		o    plan.Observed
		want []ident.CopyRef
	}{
		{"declared", declared, seen, []ident.CopyRef{key, older}},
		{"removed while one is verified", plan.Desired{}, running, []ident.CopyRef{older}},
		{"removed", plan.Desired{}, seen, nil},
		{"declared again", declared, seen, nil},
	} {
		r.dropObsolete(step.d, step.o, plan.Plan{})
		want := map[ident.CopyRef]bool{}
		for _, ref := range step.want {
			want[ref] = true
		}
		if !maps.Equal(r.verify, want) {
			t.Errorf("%s: the requests are %v, want %v", step.name, r.verify, want)
		}
	}
}

// Before a daemon has read its config directory, it does not know which images are declared. A client
// that requests something then has to retry, and must not learn that its image is not declared.
func TestRequestBeforeTheConfigurationIsRead(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	l := NewLoop(New(fetch.Client{}, nil, log, true), LoopOptions{Dir: t.TempDir(), Interval: time.Hour, Node: "node1", Log: log})
	for _, v := range []*status.View{nil, {Fault: "no such directory"}} {
		if v != nil {
			l.view.Store(v)
		}
		_, verified := l.Verify(t.Context(), "parrot")
		_, retried := l.Retry(t.Context(), "parrot", nil)
		_, cleaned := l.Cleanup(t.Context(), "parrot", "", ident.DiskRef{Node: "node1", Disk: "disk1"})
		_, orphan := l.Cleanup(t.Context(), "parrot", "0000000a", ident.DiskRef{Node: "node1", Disk: "disk1"})
		for _, err := range []error{verified, retried, cleaned, orphan} {
			if err == nil || errors.Is(err, ErrNotDeclared) || !strings.HasSuffix(err.Error(), "retry later") {
				t.Errorf("got %v", err)
			}
		}
	}
}
