package simulation

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// Disk is a disk in memory, wherever it is attached. It is for one goroutine.
type Disk struct {
	UUID    string
	Library *Library // of the files on the disk
	Copies  map[ident.ID]*Copy
	Total   int64
	// OtherFiles are the bytes that are neither free nor in a copy.
	OtherFiles int64
	// Attached: the disk is at its path and can be opened.
	Attached bool
	// Replicas are the replicas that came when the disk had no file of their image, by image. Replicas that
	// came later are in Copy.Users.
	Replicas map[ident.ID]Replicas
	// ReplicasAway: the folder of the replicas is not mounted. A manager finds only the replicas that it has recorded.
	ReplicasAway bool
	recorded     map[ident.ID]bool
	// UsersUnknown: the metadata of a replica cannot be read, so that no copy counts as unused.
	UsersUnknown bool
	// ReadOnly: all writes fail.
	ReadOnly bool
	// FailsWrites: writes of image data fail. Changes of records and deletions succeed.
	FailsWrites bool
	// OtherHashes: all chunk manifests on the disk have hashes of another algorithm. On a real disk only
	// some may, because a copy from another node keeps the algorithm.
	OtherHashes bool
}

// Copy is the folder of a copy: the file, the partial file and the record. Its fields are the truth
// about the disk. A manager sees only what Disk.Copy returns.
type Copy struct {
	File    string // the content of the file; "": there is no file
	Partial int64  // bytes in the partial file
	// PartialTotal is the size of the complete file.
	PartialTotal int64
	// PartialSource is model.PartFromPeers, model.PartFromUpload, or empty for another source.
	PartialSource model.PartKind

	// The record:

	Owned    bool
	Recorded string // the content whose digests are recorded; "": none is
	Failure  string // why the file must not be used; "": it may be used
	// Changed: the evidence in the record does not match the file.
	Changed               bool
	VerifiedAt, DamagedAt time.Time
	ReadBackAt            time.Time
	BackupID              string
	Usage                 model.Usage
	// NoCfg: the file has no valid backing.cfg.
	NoCfg bool

	// Users is the number of replicas that use the copy. UsedBy describes them; "": a replica.
	Users  int
	UsedBy string
	// Aside: a deletion has renamed the folder.
	Aside bool
	// Marks are the marks in the folder: the secrets by name.
	Marks map[string]string
}

// Replicas are replicas of volumes that need the same image.
type Replicas struct {
	Count int
	Since time.Time // when the first one came, by a wall clock; zero: long ago
}

var (
	// errIO is the error of a disk that fails.
	errIO = errors.New("input/output error")
	// errUsers is the error of a disk with UsersUnknown.
	errUsers = errors.New("the metadata of a replica cannot be read")
	// errNoFile is the error of a job on a file that does not exist.
	errNoFile = errors.New("the file does not exist")
)

// NewDisk returns an empty disk that is attached.
func NewDisk(uuid string, library *Library, total int64) *Disk {
	return &Disk{UUID: uuid, Library: library, Total: total, Attached: true, Copies: map[ident.ID]*Copy{}, Replicas: map[ident.ID]Replicas{}}
}

// IDs returns the folders on the disk, sorted.
func (d *Disk) IDs() []ident.ID { return slices.SortedFunc(maps.Keys(d.Copies), ident.ID.Compare) }

// Folder returns the folder of a copy. It creates the folder if there is none.
func (d *Disk) Folder(id ident.ID) *Copy {
	if d.Copies[id] == nil {
		d.Copies[id] = &Copy{}
	}
	return d.Copies[id]
}

// Free returns the free bytes.
func (d *Disk) Free() int64 { return max(0, min(d.Total-d.OtherFiles-d.occupied(), d.Total)) }

// SetFree changes OtherFiles, and Total if it is too small, so that these bytes are free.
func (d *Disk) SetFree(bytes int64) {
	d.Total = max(d.Total, bytes)
	d.OtherFiles = d.Total - d.occupied() - bytes
}

// occupied returns the bytes of all copies.
func (d *Disk) occupied() int64 {
	bytes := int64(0)
	for _, c := range d.Copies {
		bytes += c.Partial
		if c.File != "" {
			bytes += d.Library.Properties(c.File).RealSize
		}
	}
	return bytes
}

// Copy returns a copy as a listing of the disk shows it.
func (d *Disk) Copy(id ident.ID) model.Copy {
	c := d.Copies[id]
	v := model.Copy{
		ID: id, State: model.Pending, Owned: c.Owned, HasCfg: !c.NoCfg, PartBytes: c.Partial, VerifiedAt: c.VerifiedAt, ReadBackAt: c.ReadBackAt, DamagedAt: c.DamagedAt, BackupID: c.BackupID,
		Usage: c.Usage,
	}
	if c.Partial > 0 || c.PartialSource == model.PartFromUpload {
		v.PartTotal, v.PartKind = c.PartialTotal, c.PartialSource
	}
	if c.File == "" {
		return v
	}
	file := d.Library.Properties(c.File)
	v.Format, v.Size, v.RealSize, v.VirtualSize = file.Format, file.Size, file.RealSize, file.VirtualSize
	v.State = model.Ready
	if c.Owned && c.Recorded != "" && !c.Changed {
		recorded := d.Library.Properties(c.Recorded)
		v.SHA512, v.SHA256, v.ManifestDigest = recorded.SHA512, recorded.SHA256, d.manifestOf(recorded)
	}
	switch {
	case !c.Owned:
		v.State, v.Message = model.Unknown, "not verified yet"
	case c.Changed:
		v.State, v.Message = model.Unknown, "changed"
	case c.Failure != "":
		v.State, v.Message = model.Failed, c.Failure
	}
	return v
}

// manifestOf returns the digest of the chunk manifest that a file on the disk has.
func (d *Disk) manifestOf(p Properties) ident.Digest {
	if m := p.Manifests(); d.OtherHashes && len(m) > 0 {
		return m[1]
	}
	return p.ManifestDigest
}

// Ready reports whether a listing shows the copy as ready. It is false for nil.
func (c *Copy) Ready() bool {
	return c != nil && c.File != "" && c.Owned && !c.Changed && c.Failure == "" && !c.Aside
}

// UsedBy returns what uses a copy on the disk, or may use it; "": nothing does.
func (d *Disk) UsedBy(id ident.ID) string {
	if user := d.replicasOf(id); user != "" || !d.UsersUnknown {
		return user
	}
	return "cannot determine what is in use"
}

// replicasOf returns which replicas name an image, as far as a manager finds them; "": none.
func (d *Disk) replicasOf(id ident.ID) string {
	c, count := d.Copies[id], d.Replicas[id].Count
	if c != nil {
		count += c.Users
	}
	switch {
	case d.ReplicasAway && !d.recorded[id], !d.ReplicasAway && count == 0:
		return ""
	case c != nil && c.Users > 0:
		return cmp.Or(c.UsedBy, "used by a replica")
	}
	return "used by a replica"
}

// named returns the images that replicas name, as far as a manager finds them.
func (d *Disk) named() map[ident.ID]bool {
	named := map[ident.ID]bool{}
	for _, ids := range [][]ident.ID{slices.Collect(maps.Keys(d.Replicas)), slices.Collect(maps.Keys(d.Copies)), slices.Collect(maps.Keys(d.recorded))} {
		for _, id := range ids {
			if d.replicasOf(id) != "" {
				named[id] = true
			}
		}
	}
	return named
}

// Open opens the disk that current returns, as system.System.OpenDisk does. current returns the
// disk that is at a path now, nil if there is none.
func Open(current func() *Disk) (d system.Disk, uuid string, err error) {
	now := current()
	if now == nil || !now.Attached {
		return nil, "", disk.ErrNotInitialised
	}
	for _, c := range now.Copies {
		c.Marks = nil // an earlier process left them
	}
	return openDisk{now, current}, now.UUID, nil
}

// Opened returns the Disk that Open opened.
func Opened(d system.Disk) *Disk { return d.(openDisk).disk }

// openDisk implements system.Disk.
type openDisk struct {
	disk    *Disk
	current func() *Disk
}

// Check implements system.Disk.
func (o openDisk) Check() error {
	if o.current() != o.disk || !o.disk.Attached {
		return disk.ErrNotInitialised
	}
	return nil
}

// List implements system.Disk.
func (o openDisk) List(name string) (c system.Contents, err error) {
	if o.Check() != nil {
		return c, errIO
	}
	u := users{map[ident.ID]string{}, o.disk.UsersUnknown, o.disk.needs()}
	for _, id := range o.disk.IDs() {
		one := o.disk.Copies[id]
		if one.Aside || name != "" && id.Name != name {
			continue
		}
		c.Copies = append(c.Copies, o.disk.Copy(id))
		u.reasons[id] = o.disk.replicasOf(id)
	}
	c.Space, c.ReadOnly, c.Users = model.Space{Total: o.disk.Total, Free: o.disk.Free()}, o.disk.ReadOnly, u
	return c, nil
}

// Update implements system.Disk. It changes the usage in the record.
func (o openDisk) Update(id ident.ID, change func(*disk.Record)) error {
	c := o.disk.Copies[id]
	if o.Check() != nil || o.disk.ReadOnly || c == nil || c.Aside {
		return errIO
	}
	r := disk.Record{Usage: c.Usage}
	change(&r)
	c.Usage = r.Usage
	return nil
}

// RecordUsers implements system.Disk.
func (o openDisk) RecordUsers() error {
	if o.Check() != nil || o.disk.ReadOnly {
		return errIO
	}
	o.disk.recorded = o.disk.named()
	return nil
}

// EndUses implements system.Disk.
func (o openDisk) EndUses(name, uuid string) {
	maps.DeleteFunc(o.disk.recorded, func(id ident.ID, _ bool) bool { return id.Name == name && (uuid == "" || id.UUID == uuid) })
}

// SetMark implements system.Disk.
func (o openDisk) SetMark(id ident.ID, m disk.Mark) error {
	c := o.disk.Copies[id]
	if o.Check() != nil || o.disk.ReadOnly || c == nil || c.Aside {
		return errIO
	}
	if c.Marks == nil {
		c.Marks = map[string]string{}
	}
	c.Marks[m.Name] = m.Secret
	return nil
}

// ReadMark implements system.Disk.
func (o openDisk) ReadMark(id ident.ID, name string) (secret string, err error) {
	if c := o.disk.Copies[id]; c != nil {
		secret = c.Marks[name]
	}
	return secret, o.Check()
}

// Marked implements system.Disk.
func (o openDisk) Marked(id ident.ID) (bool, error) {
	c := o.disk.Copies[id]
	return c != nil && len(c.Marks) > 0, o.Check()
}

// RemoveMark implements system.Disk.
func (o openDisk) RemoveMark(id ident.ID, name string) error {
	if c := o.disk.Copies[id]; c != nil {
		delete(c.Marks, name)
	}
	return nil
}

// Folder implements system.Disk. No simulated node sees that two disks have one folder: only the mark shows it.
func (openDisk) Folder() (model.FolderID, error) { return model.FolderID{}, nil }

// Close implements system.Disk.
func (openDisk) Close() error { return nil }

// users implements system.Users.
type users struct {
	reasons map[ident.ID]string // what uses a copy; "": nothing
	unknown bool
	needs   map[ident.ID]disk.Need
}

// Needs implements system.Users.
func (u users) Needs() map[ident.ID]disk.Need { return u.needs }

// needs returns what replicas name.
func (d *Disk) needs() map[ident.ID]disk.Need {
	needs := map[ident.ID]disk.Need{}
	for id := range d.named() {
		if c := d.Copies[id]; c == nil || !c.Aside {
			needs[id] = disk.Need{Replicas: []string{"vol-1"}, Since: d.Replicas[id].Since}
		}
	}
	return needs
}

// Err implements system.Users.
func (u users) Err() error {
	if u.unknown {
		return errUsers
	}
	return nil
}

// InUse implements system.Users.
func (u users) InUse(id ident.ID) (reason string, inUse bool) {
	reason = u.reasons[id]
	return reason, reason != ""
}

// FileOpen implements system.Users. No process has a file open.
func (users) FileOpen(ident.ID) (reason string, open bool) { return "", false }
