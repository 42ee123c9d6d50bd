package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

const (
	mostAge     = time.Minute     // of what was answered, where the loop was held up
	leastRetry  = time.Second     // before a copy that could not go is withdrawn again
	spreadRetry = 9 * time.Second // and up to so much more, so that two holders part
)

// A job that deletes goes through Round twice. The first one withdraws the copy,
// publishes that, and lets the job ask; the second one, with a look of its own that
// began after all answers, decides, and lets the job remove.

// askTime is for the answers about a copy that is to go.
const askTime = 5 * time.Second

// asking is what a job needs to ask about a copy that was withdrawn.
type asking struct {
	client *peer.Client
	nodes  []string
	at     []peer.Address // of those nodes that have one
}

// ask asks every node itself, at the same time. Who does not answer in time is
// missing from the answers.
func (j job) ask(ctx context.Context) map[string]peer.State {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[string]peer.State{}
	for _, at := range j.asking.at {
		all.Go(func() {
			state, err := j.asking.client.Copies(ctx, at, j.action.Image)
			if err != nil {
				return // as good as no answer, whatever the reason
			}
			mu.Lock()
			defer mu.Unlock()
			answers[at.Node] = state
		})
	}
	all.Wait()
	return answers
}

// decide lets go of the withdrawn copies about which everybody was asked, or takes
// the withdrawal back. It returns the removals, which are yet to be begun. o has to
// have been seen after the answers, and is changed to what holds then.
func (r *Reconciler) decide(d Desired, o Observed) (removals []func()) {
	for _, key := range r.asked() {
		run := r.running[key]
		answers, a := run.heard, run.job.action
		run.heard = nil
		if run.stopped {
			r.Finish(outcome{key: key, err: context.Canceled, stopped: true})
			delete(o.Running, key)
			continue
		}
		if age := elapsed(run.started); age > mostAge { // the loop was held up
			r.takeBack(key, fmt.Errorf("the answers are %v old", age.Round(time.Second)))
			o.Tries[key] = r.tries[key].seen(time.Now(), o.Now)
			delete(o.Running, key)
			continue
		}
		if err := d.Confirm(o.Heard(key.ID.Name, run.job.asking.nodes, answers), a); err != nil {
			r.takeBack(key, err)
			o.Tries[key] = r.tries[key].seen(time.Now(), o.Now)
			delete(o.Running, key)
			continue
		}
		run.removes = true
		removals = append(removals, func() {
			go func() { r.ended <- outcome{key: key, err: run.job.disk.Remove(key.ID)} }()
		})
	}
	return removals
}

// elapsed is how long ago since was, by the clock that says more: one stands still while
// the machine is suspended, and the other may be set back.
func elapsed(since time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// asked are the withdrawn copies that can be decided on.
func (r *Reconciler) asked() []Key {
	var keys []Key
	for key, run := range r.running {
		if run.heard != nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Or(compareIDs(a.ID, b.ID), compareRefs(a.Disk, b.Disk)) })
	return keys
}

// takeBack ends a job whose copy has to stay after all. Nothing has failed: it is
// tried again soon, and not at the same moment as another holder does.
func (r *Reconciler) takeBack(key Key, why error) {
	run := r.running[key]
	delete(r.running, key)
	r.transfers.end(key, outcome{key: key, stopped: true, err: why})
	run.stop()
	now := time.Now()
	until := now.Add(leastRetry + rand.N(spreadRetry))
	last := r.tries[key].Try
	next := Try{Kind: run.job.action.Kind, Since: now, Until: until, Message: why.Error()}
	next.Suspects, next.Unrepairable = last.Suspects, last.Unrepairable
	r.tries[key] = tried{next, run.job.image, r.disks.uuid(key.Disk)}
	r.log.Info("kept for now", "copy", key.String(), "reason", why.Error(), "again", until.Format(time.RFC3339))
}

// forgoAsked takes back the withdrawals that would be decided on next.
func (r *Reconciler) forgoAsked() {
	for _, key := range r.asked() {
		r.Finish(outcome{key: key, err: context.Canceled, stopped: true})
	}
}
