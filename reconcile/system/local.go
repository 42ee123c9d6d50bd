package system

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/export"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Local implements Peers over the network, and Jobs as goroutines.
type Local struct {
	Uploads   *upload.Sessions
	Published *peer.StateCache

	client   fetch.Client
	log      *slog.Logger
	restores *backup.MemoryBudget
	peers    *peer.Client // nil: there are none
	poller   *peer.Poller // nil without peers
}

// New returns the System of this machine. Its downloads go through client. It queries other nodes through peers; nil: it
// queries none. With readOnly it opens disks without a lock.
func New(client fetch.Client, peers *peer.Client, log *slog.Logger, readOnly bool) (*Local, System) {
	l := &Local{
		Uploads: upload.NewSessions(), Published: peer.NewStateCache(),
		client: client, log: log, restores: backup.NewMemoryBudget(), peers: peers,
	}
	if peers != nil {
		l.poller = peer.NewPoller(peers)
	}
	return l, System{
		Now: Now, Random: rand.Float64, Secret: secret, Peers: l, Jobs: l,
		OpenDisk: func(path string) (Disk, string, error) { return openDisk(path, readOnly) },
	}
}

// Now reads both clocks of the operating system at the same moment. Round removes the
// monotonic reading from the wall time.
func Now() Instant {
	now := time.Now()
	return Instant{Wall: now.Round(0).UTC(), Steady: now}
}

// secret returns a number from the random source of the operating system, which never fails.
func secret() uint64 {
	var b [8]byte
	_, _ = cryptorand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// localDisk implements Disk for a folder.
type localDisk struct {
	*disk.Disk // implements Check
	unlock     func() error
}

// openDisk opens the disk at a path, and locks it unless readOnly. With an error it returns the
// uuid if it could be read.
func openDisk(path string, readOnly bool) (Disk, string, error) {
	d, err := disk.Open(path)
	if err != nil {
		return nil, "", err
	}
	if readOnly {
		return localDisk{d, func() error { return nil }}, d.UUID(), nil
	}
	unlock, err := d.Lock()
	if err != nil {
		return nil, d.UUID(), errors.Join(err, d.Close())
	}
	return localDisk{d, unlock}, d.UUID(), nil
}

// List implements Disk.
func (d localDisk) List(name string) (c Contents, err error) {
	if name == "" {
		c.Listing, err = d.Disk.List()
	} else {
		c.Copies, err = d.ListGenerations(name)
	}
	if err != nil {
		return Contents{}, err
	}
	if c.Space, err = d.Space(); err != nil {
		return Contents{}, err
	}
	if c.ReadOnly, err = d.ReadOnly(); err != nil {
		return Contents{}, err
	}
	c.Users = d.Users()
	return c, nil
}

// Update implements Disk.
func (d localDisk) Update(id ident.ID, change func(*disk.Record)) error {
	err := d.Disk.Update(id, change)
	d.WriteFailed(err)
	return err
}

// Close implements Disk.
func (d localDisk) Close() error { return errors.Join(d.unlock(), d.Disk.Close()) }

// Folder returns the disk.Disk behind a Disk that was opened on this machine, nil for nil.
func Folder(d Disk) *disk.Disk {
	if d == nil {
		return nil
	}
	return d.(localDisk).Disk
}

// Folders returns Folder of each disk.
func (d Disks) Folders() map[string]*disk.Disk {
	folders := make(map[string]*disk.Disk, len(d))
	for name, one := range d {
		folders[name] = Folder(one)
	}
	return folders
}

// Follow implements Peers.
func (l *Local) Follow(ctx context.Context, nodes map[string]peer.Target) {
	if l.poller != nil {
		l.poller.SetPeers(ctx, nodes)
	}
}

// Observations implements Peers.
func (l *Local) Observations() map[string]peer.Observation {
	if l.poller == nil {
		return nil
	}
	return l.poller.Observations()
}

// Changed returns a channel that receives a value after another node published a new state,
// or stopped responding. Several changes may be one value. The channel is nil without peers, and for a nil Local.
func (l *Local) Changed() <-chan struct{} {
	if l == nil || l.poller == nil {
		return nil
	}
	return l.poller.Changed()
}

// Waiting reports whether a followed peer has neither responded nor failed yet.
func (l *Local) Waiting() bool {
	for _, o := range l.Observations() {
		if !o.Polled {
			return true
		}
	}
	return false
}

// Publish implements Peers.
func (l *Local) Publish(s model.Node) { l.Published.Publish(s) }

// Close implements Peers.
func (l *Local) Close() {
	if l.poller != nil {
		l.poller.Close()
		l.peers.Close()
	}
}

// Start implements Jobs.
func (l *Local) Start(ctx context.Context, o job.Order, on Disks, done func(error)) {
	j := l.job(o, on)
	go func() {
		var err error
		if o.Action.Op.Deletes() {
			err = j.Disk.Remove(o.Action.CopyRef().ID, o.Mark, func() error { return stillCount(o.Counted, j.Disks) })
		} else {
			err = j.Run(ctx)
		}
		j.Disk.WriteFailed(err)
		done(err)
	}()
}

// stillCount returns an error unless all copies on which a deletion counts are ready and without a mark. The deletion has no
// mark of its own, and cannot keep another node with the same folders from counting on the copy that it deletes (U5).
func stillCount(copies []ident.CopyRef, on map[string]*disk.Disk) error {
	for _, ref := range copies {
		d := on[ref.Disk.Disk]
		if d == nil {
			return fmt.Errorf("not deleted: disk %s, with a copy that counts, was opened again", ref.Disk)
		}
		marked, err := d.Marked(ref.ID)
		if c := d.Stat(ref.ID); err == nil && (marked || c.State != model.Ready) {
			err = fmt.Errorf("not deleted: the copy on %s does not count any more: another node may have the same folders", ref.Disk)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// job returns the job of an order.
func (l *Local) job(o job.Order, on Disks) job.Job {
	client := l.client // a copy, because the setting may change while the job runs
	client.AllowLoopback = o.AllowLoopback
	log := l.log.With("copy", o.Action.CopyRef().String())
	folders := on.Folders()
	return job.Job{
		Order: o, Disk: folders[o.Action.Disk], Disks: folders,
		Client: &client, Peers: l.peers, Uploads: l.Uploads, Restores: l.restores,
		Warn:      func(err error) { log.Warn("a source sent wrong bytes", "error", err) },
		WarnIndex: func(err error) { log.Warn("download by index", "problem", err) },
		WarnKeys:  func(text string) { log.Warn("keys for signatures", "problem", text) },
		Survey: func(s assemble.Survey) {
			log.Info("download by index", "bytes", s.Size, "missing", s.Missing)
		},
	}
}

// CanExport implements Jobs.
func (l *Local) CanExport(e schema.ExportFromVolume, on Disks) error {
	_, err := export.Find(&l.client, on.Folders(), job.ExportRequest(e))
	return err
}

// Query implements Jobs: it requests the current copies from all nodes at the same time, see peer.Client.Copies.
func (l *Local) Query(ctx context.Context, a plan.Action, mark string, nodes []peer.Address, done func(map[string]model.Node)) {
	if l.peers == nil {
		nodes = nil // without responses, no deletion that needs them is confirmed
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
		defer cancel()
		done(collect(nodes, func(at peer.Address) (string, model.Node, bool) {
			state, err := l.peers.Copies(ctx, at, a.Image, mark)
			return at.Node, state, err == nil // a failed query counts as no response
		}))
	}()
}

// collect calls ask(item) for all items at the same time. By key, it returns the values for which ok is true.
func collect[T any, K comparable, V any](items []T, ask func(T) (key K, value V, ok bool)) map[K]V {
	var mu sync.Mutex
	var all sync.WaitGroup
	values := map[K]V{}
	for _, item := range items {
		all.Go(func() {
			if key, value, ok := ask(item); ok {
				mu.Lock()
				defer mu.Unlock()
				values[key] = value
			}
		})
	}
	all.Wait()
	return values
}

// Prove implements Jobs. It requests all proofs at the same time.
func (l *Local) Prove(ctx context.Context, _ plan.Action, tasks []ProofTask, on Disks, done func(map[ident.CopyRef]plan.Proof)) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, ProofTimeout)
		defer cancel()
		done(collect(tasks, func(t ProofTask) (ident.CopyRef, plan.Proof, bool) {
			return t.Copy, l.prove(ctx, t, on.Folders()), true
		}))
	}()
}

// prove requests or makes one proof.
func (l *Local) prove(ctx context.Context, t ProofTask, on map[string]*disk.Disk) plan.Proof {
	chunk, err := l.selectChunk(ctx, t, on)
	switch {
	case err != nil:
	case t.Own:
		err = on[t.Copy.Disk.Disk].Prove(t.Copy.ID, chunk)
	default:
		err = l.peers.Prove(ctx, t.Source, chunk)
	}
	switch {
	case err == nil:
		return plan.Proof{Result: plan.ProofPassed}
	case errors.Is(err, peer.ErrWrongChunk), t.Own && (errors.Is(err, disk.ErrDamaged) || disk.IsMediaError(err)):
		return plan.Proof{Result: plan.ProofWrong, Problem: err.Error()}
	}
	return plan.Proof{Problem: err.Error()}
}

// selectChunk selects the chunk of a proof from a manifest of this node, if it has one, or from the
// manifest that the other node serves.
func (l *Local) selectChunk(ctx context.Context, t ProofTask, on map[string]*disk.Disk) (disk.SelectedChunk, error) {
	if t.Local == (ident.CopyRef{}) {
		return l.peers.SelectChunk(ctx, t.Source, t.Source.Size, t.Secret)
	}
	m, err := on[t.Local.Disk.Disk].Manifest(t.Local.ID)
	if err != nil {
		return disk.SelectedChunk{}, err
	}
	chunk, err := disk.SelectChunk(m.Encoded(), m.Size(), t.Secret)
	return chunk, errors.Join(err, m.Close())
}
