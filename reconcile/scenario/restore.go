package scenario

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// restore sets the cluster to saved states. All managers restart. What the saved states do not
// contain stays as it is.
func (w *world) restore(s *status.SavedCluster) {
	c := s.Cluster(w.base)
	for _, n := range w.nodes {
		n.stop()
	}
	w.now, w.startedAt = c.Now, c.Now
	problems := map[ident.DiskRef]time.Duration{}
	for ref, saved := range c.Disks {
		w.disks[diskLocation{ref.Node, saved.Path}] = w.restoredDisk(ref, saved, c.BackedUp)
		if saved.Problem != "" {
			problems[ref] = saved.ProblemFor(c.Now)
		}
	}
	for node, images := range c.CannotPrepare {
		for id := range images {
			w.sources[id.Name] = w.sourceOf(id.Name).without(node, w.base.Config)
		}
	}
	w.startNodes()
	for name, n := range w.nodes {
		n.startedAt = time.Time{} // the zero time: the manager knows since when the other nodes are down
		n.reconciler.Restore(n.desired(), c.Failures, problems)
		_, unreachable := c.Unreachable[name]
		n.observeOnly = unreachable && s.Knows(name)
	}
	// Each node publishes its saved state, also a node that does not respond now.
	w.observeAll()
	for name, p := range c.Unreachable {
		if n := w.nodes[name]; n != nil && n.observeOnly {
			n.stop()
			w.down[name] = w.now.Add(-p.UnreachableFor(c.Now))
		}
	}
	w.changed()
}

// restoredDisk returns a disk with the content of a saved disk.
func (w *world) restoredDisk(ref ident.DiskRef, saved model.Disk, backedUp map[ident.CopyRef]bool) *simulation.Disk {
	d := simulation.NewDisk(saved.UUID, w.contents.Library, saved.Space.Total)
	d.Attached, d.UsersUnknown = saved.Problem == "", saved.UsageUnknown != ""
	for id, c := range saved.Copies {
		copied := w.contents.restore(w.base.Config, c)
		if image := w.base.Config.Images[id.Name]; image.Backup != nil && backedUp[ident.CopyRef{Disk: ref, ID: id}] {
			copied.BackupID = plan.BackupRecord(*image.Backup, id, c.SHA512)
		}
		d.Copies[id] = copied
	}
	for id, need := range saved.Needs {
		d.Replicas[id] = simulation.Replicas{Count: 1, Since: need.Since}
	}
	d.SetFree(saved.Space.Free)
	return d
}
