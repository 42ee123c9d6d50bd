package reconcile

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// A round observes all copies, plans all images and publishes the whole state. If each job that ends
// caused a round, n images would cost n rounds of n images. So rounds that can wait have a pace, and until
// the next round the backlog of the last plan keeps the slots busy.

const (
	// roundShare limits the rounds that can wait to about a twentieth of the time.
	roundShare = 20
	// maxRoundDelay limits how late a round is. It is the default interval of the daemon.
	maxRoundDelay = 10 * time.Second
)

// pace is the delay of rounds that can wait.
type pace struct {
	now   func() system.Instant
	ended time.Time     // of the last round, steady
	took  time.Duration // the last round
}

// measure calls round, and measures it.
func (p *pace) measure(round func()) {
	began := p.now().Steady
	round()
	p.ended = p.now().Steady
	p.took = p.ended.Sub(began)
}

// delay returns how much longer a round that can wait has to wait.
func (p *pace) delay() time.Duration {
	return max(0, min(p.took*roundShare, maxRoundDelay)-p.now().Steady.Sub(p.ended))
}

// backlog are the actions of the last plan for which there was no free slot. The actions of a plan do not
// depend on each other, so an action may begin after the round. A backlog has no deletions: only a round can
// withdraw a copy.
type backlog struct {
	round   *plan.Round
	actions []plan.Action // in the order of the plan, one for each copy
}

// add adds an action. It leaves out actions that only a round begins: deletions, the scrub of a plan, and
// the second action on a copy.
func (b *backlog) add(a plan.Action) {
	n := len(b.actions)
	if a.Op.Deletes() || a.Scrub || n > 0 && b.actions[n-1].CopyRef() == a.CopyRef() {
		return
	}
	b.actions = append(b.actions, a)
}

// drop drops all actions: the plan is not right any more.
func (b *backlog) drop() { b.actions = nil }

// next removes and returns the first action for which there is a slot.
func (b *backlog) next(free *slots) (a plan.Action, ok bool) {
	if len(b.actions) == 0 || !free.acquire(b.actions[0]) {
		return plan.Action{}, false
	}
	a, b.actions = b.actions[0], b.actions[1:]
	return a, true
}
