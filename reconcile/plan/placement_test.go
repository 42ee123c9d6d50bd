package plan_test

import (
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Two managers that own one disk each of the same node must agree on the ranking: OnlyDisks
// must not change it.
func TestOnlyDisksKeepTheRanking(t *testing.T) {
	const config = `
nodes:
  node1:
    disks:
      a: {path: /mnt/a}
      b: {path: /mnt/b}
images:
  parrot: {source: {download: {url: "https://example.com/parrot.raw"}}}
`
	var downloads []ident.DiskRef
	for _, only := range []string{"a", "/mnt/b"} {
		d := plantest.Load(t, config, only)
		o := plan.Observed{Now: plantest.Now, Disks: map[ident.DiskRef]model.Disk{}}
		for name := range d.OnlyDisks {
			o.Disks[ident.DiskRef{Node: "node1", Disk: name}] = model.Disk{Space: model.Space{Free: 50 << 30}}
		}
		for _, a := range plan.NewRound(d, o).Plan().Actions {
			if a.Op == model.Download {
				downloads = append(downloads, a.CopyRef().Disk)
			}
		}
	}
	if len(downloads) != 1 {
		t.Errorf("downloads are planned on %v, want one", downloads)
	}
}

// Both nodes failed to download. The better ranked one has to wait, the retry of the other
// one is due: it must download, although it ranks lower.
func TestFailingDiskWithDueRetryActs(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	o.Failures[ident.CopyRef{Disk: refs[0], ID: image.ID}] = model.Failure{Op: model.Download, Attempts: 30, Message: "no route", Fault: model.FaultNetwork, Since: plantest.Now.Add(-3 * time.Hour), RetryAt: plantest.Now.Add(4 * time.Minute)}
	o.Failures[ident.CopyRef{Disk: refs[1], ID: image.ID}] = model.Failure{Op: model.Download, Attempts: 5, Message: "refused", Fault: model.FaultNetwork, Since: plantest.Now.Add(-2 * time.Hour), RetryAt: plantest.Now.Add(-time.Hour)}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	plantest.ExpectAction(t, plan.NewRound(d, o).Plan())
}

// The best ranked node cannot reach the source: another node creates the first copy. As soon
// as that is ready, the best ranked node is the desired one again, as it can sync.
func TestFailoverMovesOnlyTheFirstCopy(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	o.Failures[ident.CopyRef{Disk: refs[0], ID: image.ID}] = model.Failure{Op: model.Download, Attempts: 30, Message: "no route", Fault: model.FaultNetwork, Since: plantest.Now.Add(-3 * time.Hour), RetryAt: plantest.Now.Add(time.Minute)}
	expectTarget := func(want ident.DiskRef) {
		t.Helper()
		if got := plan.NewRound(plan.Desired{Config: c}, o).Placements()[image.ID].Targets; len(got) != 1 || got[0] != want {
			t.Errorf("the desired disks are %v, want %v", got, want)
		}
	}
	expectTarget(refs[1])
	o.Disks[refs[1]].Copies[image.ID] = plantest.ReadyCopy(image, image.Checksum)
	expectTarget(refs[0])
}

// A disk is too small for the announced size of a download, holes included. It must accept a sync
// of the same image, which transfers only the data.
func TestSyncNeedsLessSpaceThanTheSource(t *testing.T) {
	c, image, refs := plantest.TwoNodes(2)
	o := plantest.EmptyDisks(c)
	small := o.Disks[refs[0]]
	small.Space.Free = 5 << 30
	o.Disks[refs[0]] = small
	rejection := func(failed model.Op) string {
		o.Failures[ident.CopyRef{Disk: refs[0], ID: image.ID}] = model.Failure{Op: failed, Attempts: 1, Fault: model.FaultDisk, NeedsSpace: 10 << 30, Since: plantest.Now, RetryAt: plantest.Now}
		d := plan.Desired{Node: refs[0].Node, Config: c, Digest: "d", Allowed: schema.Everything}
		return plan.NewRound(d, o).Placements()[image.ID].PassedOver[refs[0]].Text
	}
	const noSpace = "not enough space: 5.0 GiB are free and 0 B reserved, 10 GiB are needed"
	if got := rejection(model.Download); got != noSpace {
		t.Errorf("before the first copy it is rejected with %q", got)
	}
	first := plantest.ReadyCopy(image, image.Checksum)
	first.RealSize = 1 << 30
	o.Disks[refs[1]].Copies[image.ID] = first
	if got := rejection(model.Download); got != "" {
		t.Errorf("with a copy of 1 GiB on a peer it is rejected with %q", got)
	}
	if got := rejection(model.Sync); got != noSpace {
		t.Errorf("after a sync that ran out of space it is rejected with %q", got)
	}
}

// A node responds and has the same configuration, but its daemon was started with --disk for
// another disk than the best ranked one. Some other disk has to get the copy.
func TestDiskWithoutAManagerIsPassedOver(t *testing.T) {
	c, _, refs := plantest.TwoNodes(1)
	d1, o1 := plantest.AsNode(refs[0].Node, c, plantest.EmptyDisks(c))
	d2, o2 := plantest.AsNode(refs[1].Node, c, plantest.EmptyDisks(c))
	d1.OnlyDisks = map[string]bool{"other": true}
	delete(o1.Disks, refs[0])
	delete(o2.Disks, refs[0])
	plantest.ExpectAction(t, plan.NewRound(d1, o1).Plan(), plan.NewRound(d2, o2).Plan())
}

// A node does not wait for a file on another node that has not proven its bytes, or that it has waited for too long. It
// measures instead how long it waits for the first target, which has begun a first copy and does not continue it.
func TestFirstTargetIsAwaitedBesideAFileThatDoesNotCount(t *testing.T) {
	const state = `
node node1
peer node2
peer node3
disk disk1
disk node2/disk1
disk node3/disk1
copy node2/disk1 parrot pending partial=1GiB/2GiB
`
	for _, test := range []struct {
		name, more, want string
	}{
		{"a file to verify", "copy node3/disk1 parrot unknown", "node3/disk1"},
		{"unproven", "copy node3/disk1 parrot unknown unproven", "node2/disk1"},
		{"overdue", "copy node3/disk1 parrot unknown\nawaited node3/disk1 parrot 1h", "node2/disk1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			archive := txtar.Parse([]byte("-- config.yaml --\n" + `
nodes: {node1: {disks: {disk1: {path: /disk1}}}, node2: {disks: {disk1: {path: /disk1}}}, node3: {disks: {disk1: {path: /disk1}}}}
images: {parrot: {source: {download: {url: "https://example.com/parrot.raw"}}, checksum: SHA512(a), minNumberOfCopies: 1}}
` + "-- state --" + state + test.more + "\n"))
			d, o := goldenCase(t, archive)
			p := plan.NewRound(d, o).Plan()
			if len(p.Awaited) != 1 || p.Awaited[0].Disk.String() != test.want {
				t.Errorf("the node waits for %v, want %s", p.Awaited, test.want)
			}
		})
	}
}
