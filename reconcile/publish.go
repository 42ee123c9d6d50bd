package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// publish tells the other nodes what this one has and does. A withdrawal ends only
// with this: a look that began after the copy was gone is then what they see.
func (r *Reconciler) publish(d Desired, o Observed) {
	r.board.Publish(r.state(d, o))
	r.leaving.keep(r.leaves)
}

// leaves reports whether a job that deletes the copy is under way.
func (r *Reconciler) leaves(key Key) bool {
	run := r.running[key]
	return run != nil && run.job.action.Kind.drops()
}

func (r *Reconciler) state(d Desired, o Observed) peer.State {
	s := peer.State{Node: d.Node, Config: d.told(), Clock: o.Now, Disks: []peer.Disk{}}
	told := r.tell(d, o)
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		if !d.mine(ref) {
			continue
		}
		one := tellDisk(ref, o.Disks[ref])
		if one.Problem == "" {
			one.Copies = append(one.Copies, slices.SortedFunc(maps.Values(told[ref]), compareTold)...)
		}
		s.Disks = append(s.Disks, one)
	}
	return s
}

// told is the digest that others hear: none from a node that would not do its part.
func (d Desired) told() string {
	if d.May == schema.ObserveOnly {
		return ""
	}
	return d.Digest
}

// suspected is said of a copy that is not counted on before it has been read.
const suspected = "a copy that was made of it has other bytes"

func compareTold(a, b peer.Copy) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UUID, b.UUID))
}

// tell makes what is told of the copies on each disk of this node, and of what is
// under way, failed or is refused there without a copy.
func (r *Reconciler) tell(d Desired, o Observed) map[schema.DiskRef]map[disk.ID]peer.Copy {
	told := map[schema.DiskRef]map[disk.ID]peer.Copy{}
	for ref, seen := range o.Disks {
		if d.mine(ref) {
			told[ref] = make(map[disk.ID]peer.Copy, len(seen.Copies))
			for id, c := range seen.Copies {
				told[ref][id] = tellCopy(c)
			}
		}
	}
	note := func(key Key, change func(*peer.Copy)) {
		copies, ok := told[key.Disk]
		if !ok {
			return
		}
		c, there := copies[key.ID]
		if !there {
			c = peer.Copy{Copy: disk.Copy{ID: key.ID, State: disk.Pending}}
		}
		change(&c)
		copies[key.ID] = c
	}
	for key, run := range r.running {
		note(key, func(c *peer.Copy) { c.Action, c.Leaving = string(run.job.action.Kind), r.leaves(key) })
	}
	for key, t := range o.Tries {
		if t.Attempts > 0 {
			note(key, func(c *peer.Copy) { c.Failure = tellTry(t, o.Now) })
		}
	}
	for key := range suspects(o.Tries) {
		note(key, func(c *peer.Copy) {
			if c.State == disk.Ready {
				c.State, c.Message = disk.Unknown, suspected
			}
		})
	}
	for key, r := range d.refusals(o) {
		note(key, func(c *peer.Copy) { c.Rejection, c.RejectionTemporary = r.why, r.later })
	}
	return told
}

func tellDisk(ref schema.DiskRef, seen Disk) peer.Disk {
	return peer.Disk{
		Name: ref.Disk, UUID: seen.UUID, Problem: seen.Problem, UsageUnknown: seen.Unclear,
		Total: seen.Space.Total, Free: seen.Space.Free, Copies: []peer.Copy{},
	}
}

func tellCopy(c Copy) peer.Copy {
	wire := peer.Copy{Copy: c.Copy, UsedBy: c.Using, FromPeers: c.pulled()}
	// These are for this node alone and have no JSON.
	wire.CfgExpected, wire.HasCfg, wire.BackupID = disk.Digest{}, false, ""
	wire.ClockNode, wire.InUseRecorded, wire.PartSourceID = "", false, ""
	return wire
}

func tellTry(t Try, now time.Time) *peer.Failure {
	return &peer.Failure{
		Action: string(t.Kind), Message: t.Message, Attempts: t.Attempts, Final: t.Final, Disk: t.Disk, Link: t.Link,
		Since: min(0, t.Since.Sub(now).Seconds()), RetryIn: t.Until.Sub(now).Seconds(),
	}
}
