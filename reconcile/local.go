package reconcile

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
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

// localNode implements System for the machine on which this process runs.
type localNode struct {
	peers localPeers
	jobs  localJobs
}

// newLocalNode returns a node without peers. With readOnly it opens disks without a lock.
func newLocalNode(client fetch.Client, log *slog.Logger, readOnly bool) (*localNode, System) {
	n := &localNode{peers: localPeers{published: peer.NewStateCache()}}
	n.jobs = localJobs{client: client, log: log, peers: &n.peers, uploads: upload.NewSessions(), restores: backup.NewMemoryBudget()}
	return n, System{
		Now: systemTime, Random: rand.Float64, Secret: secret, Peers: &n.peers, Jobs: &n.jobs,
		OpenDisk: func(path string) (Disk, string, error) { return openLocalDisk(path, readOnly) },
	}
}

// peersChanged returns a channel that receives a value after another node published a new state,
// or stopped responding. Several changes may be one value. It is nil if there are no peers, and for a
// nil node.
func (n *localNode) peersChanged() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.peers.changed()
}

// secret returns a number from the random source of the operating system, which never fails.
func secret() uint64 {
	var b [8]byte
	_, _ = cryptorand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// systemTime reads both clocks of the operating system at the same moment. Round removes the
// monotonic reading from the wall time.
func systemTime() Instant {
	now := time.Now()
	return Instant{Wall: now.Round(0).UTC(), Steady: now}
}

// localDisk implements Disk for a folder.
type localDisk struct {
	*disk.Disk // implements Check
	unlock     func() error
}

// openLocalDisk opens the disk at a path, and locks it unless readOnly. With an error it returns the
// uuid if it could be read.
func openLocalDisk(path string, readOnly bool) (Disk, string, error) {
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

// folderOf returns the disk.Disk behind a Disk of a localNode, nil for nil.
func folderOf(d Disk) *disk.Disk {
	if d == nil {
		return nil
	}
	return d.(localDisk).Disk
}

// localPeers implements Peers over the network. Until connect is called there are no peers.
type localPeers struct {
	client    *peer.Client // nil before connect
	poller    *peer.Poller // nil before connect
	published *peer.StateCache
}

// connect makes p query nodes through client. It must be called at most once, before all other
// methods.
func (p *localPeers) connect(client *peer.Client) {
	p.client, p.poller = client, peer.NewPoller(client)
}

// Follow implements Peers.
func (p *localPeers) Follow(ctx context.Context, nodes map[string]peer.Target) {
	if p.poller != nil {
		p.poller.SetPeers(ctx, nodes)
	}
}

// Observations implements Peers.
func (p *localPeers) Observations() map[string]peer.Observation {
	if p.poller == nil {
		return nil
	}
	return p.poller.Observations()
}

// changed returns a channel that receives a value after an observation changed; nil without
// peers.
func (p *localPeers) changed() <-chan struct{} {
	if p.poller == nil {
		return nil
	}
	return p.poller.Changed()
}

// waiting reports whether a followed peer has not responded or failed yet.
func (p *localPeers) waiting() bool {
	for _, a := range p.Observations() {
		if !a.Polled {
			return true
		}
	}
	return false
}

// Publish implements Peers.
func (p *localPeers) Publish(s model.Node) { p.published.Publish(s) }

// Close implements Peers.
func (p *localPeers) Close() {
	if p.poller != nil {
		p.poller.Close()
		p.client.Close()
	}
}

// localJobs implements Jobs: each job is a goroutine.
type localJobs struct {
	client   fetch.Client
	log      *slog.Logger
	peers    *localPeers
	uploads  *upload.Sessions
	restores *backup.MemoryBudget
}

// Start implements Jobs.
func (l *localJobs) Start(ctx context.Context, t Task, done func(error)) {
	on := folderOf(t.Disk)
	run := func() error { return on.Remove(t.Action.CopyRef().ID) }
	if !t.Action.Op.Deletes() {
		j := l.job(t)
		run = func() error { return j.Run(ctx) }
	}
	go func() {
		err := run()
		on.WriteFailed(err)
		done(err)
	}()
}

// job returns the job of a task.
func (l *localJobs) job(t Task) job.Job {
	client := l.client // a copy, because the setting may change while the job runs
	client.AllowLoopback = t.AllowLoopback
	j := job.Job{
		Order: t.Order, Disk: folderOf(t.Disk), Source: folderOf(t.Source), Disks: foldersOf(t.Disks),
		Client: &client, Peers: l.peers.client, Uploads: l.uploads, Restores: l.restores,
	}
	j.Warn = func(err error) {
		l.log.Warn("a source sent wrong bytes", "copy", t.Action.CopyRef().String(), "error", err)
	}
	j.WarnIndex = func(err error) {
		l.log.Warn("download by index", "copy", t.Action.CopyRef().String(), "problem", err)
	}
	j.WarnKeys = func(text string) {
		l.log.Warn("keys for signatures", "copy", t.Action.CopyRef().String(), "problem", text)
	}
	j.Survey = func(s assemble.Survey) {
		l.log.Info("download by index", "copy", t.Action.CopyRef().String(), "bytes", s.Size, "missing", s.Missing)
	}
	for _, s := range t.Seeds {
		j.Seeds = append(j.Seeds, job.Seed{LocalCopy: job.LocalCopy{Disk: folderOf(s.Disk), ID: s.ID}, Damaged: s.Damaged})
	}
	for _, c := range t.LocalCopies {
		j.LocalCopies = append(j.LocalCopies, job.LocalCopy{Disk: folderOf(c.Disk), ID: c.ID})
	}
	return j
}

// Query implements Jobs.
func (l *localJobs) Query(ctx context.Context, a plan.Action, mark string, nodes []peer.Address, done func(map[string]model.Node)) {
	go func() {
		if l.peers.client == nil {
			nodes = nil // without responses, no deletion that needs them is confirmed
		}
		done(queryPeers(ctx, l.peers.client, nodes, a.Image, mark))
	}()
}

// Prove implements Jobs.
func (l *localJobs) Prove(ctx context.Context, _ plan.Action, tasks []ProofTask, done func(map[ident.CopyRef]plan.Proof)) {
	go func() { done(requestChunks(ctx, l.peers.client, tasks)) }()
}

// CanExport implements Jobs.
func (l *localJobs) CanExport(e schema.ExportFromVolume, disks map[string]Disk) error {
	_, err := export.Find(&l.client, foldersOf(disks), job.ExportRequest(e))
	return err
}

// foldersOf is folderOf for several disks by name.
func foldersOf(disks map[string]Disk) map[string]*disk.Disk {
	folders := make(map[string]*disk.Disk, len(disks))
	for name, d := range disks {
		folders[name] = folderOf(d)
	}
	return folders
}

// queryPeers requests the current copies of an image from all nodes at the same time, see peer.Client.Copies. The
// responses are by node name; a node that fails or does not respond within QueryTimeout is
// missing.
func queryPeers(ctx context.Context, client *peer.Client, nodes []peer.Address, image, mark string) map[string]model.Node {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	responses := map[string]model.Node{}
	for _, at := range nodes {
		all.Go(func() {
			state, err := client.Copies(ctx, at, image, mark)
			if err != nil {
				return // a failed query counts as no response
			}
			mu.Lock()
			defer mu.Unlock()
			responses[at.Node] = state
		})
	}
	all.Wait()
	return responses
}
