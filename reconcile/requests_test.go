package reconcile

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestRequestedCleanupReturnsTheActionThatDecidesAboutIt(t *testing.T) {
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: disk.ID{Name: "parrot", UUID: "6846a0b2"}}
	other := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk2"}, ID: key.ID}
	action := func(op plan.Op, code plan.Code) plan.Action {
		return plan.NewAction(op, key, plan.Reason{Code: code}, 0)
	}
	verify := action(plan.Verify, plan.CodeVerifyRequested)
	wait := action(plan.Wait, plan.CodeTooFewReady)
	wait.Next = plan.Cleanup
	for _, tt := range []struct {
		name    string
		actions []plan.Action
		want    plan.Code
	}{
		{"nothing is planned", nil, plan.CodeDesired},
		{"only another copy is deleted", []plan.Action{plan.NewAction(plan.Cleanup, other, plan.Reason{Code: plan.CodeSurplus}, 0)}, plan.CodeDesired},
		{"the copy is deleted", []plan.Action{action(plan.Cleanup, plan.CodeSurplus)}, plan.CodeSurplus},
		{"only a verification is planned", []plan.Action{verify}, plan.CodeVerifyRequested},
		{"a verification of a desired copy", []plan.Action{verify, action(plan.Wait, plan.CodeDesired)}, plan.CodeDesired},
		{"a verification before a wait", []plan.Action{verify, wait}, plan.CodeTooFewReady},
	} {
		if got := cleanupDecision(tt.actions, key); got.Code != tt.want {
			t.Errorf("%s: the reason is %q, want %q", tt.name, got.Code, tt.want)
		}
	}
}
