package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Status is what a node shows of itself: declared, observed, and what lies
// between. It is a stable interface.
type Status struct {
	Node   string        `json:"node"`
	Time   time.Time     `json:"time"` // of the look
	Config ConfigStatus  `json:"config"`
	Disks  []DiskStatus  `json:"disks"`
	Images []ImageStatus `json:"images"`
	Plan   Plan          `json:"plan"`
}

// ConfigStatus tells how the config directory was understood.
type ConfigStatus struct {
	Digest   string   `json:"digest"` // "" while anything is broken
	Allowed  string   `json:"allowed"`
	Fault    string   `json:"fault,omitempty"` // of the directory as a whole
	Errors   []string `json:"errors"`
	Warnings []string `json:"warnings"`
}

// DiskStatus is one disk of the node. Sizes are in bytes.
type DiskStatus struct {
	Node     string   `json:"node"`
	Disk     string   `json:"disk"`
	Path     string   `json:"path"`
	UUID     string   `json:"uuid"`
	Problem  string   `json:"problem,omitempty"`
	Total    int64    `json:"total"`
	Free     int64    `json:"free"`
	Reserved int64    `json:"reserved"`
	Foreign  []string `json:"foreign"` // not ours, left alone
}

// ImageStatus is one generation of an image: declared, or one of which copies are
// left.
type ImageStatus struct {
	Name     string       `json:"name"`
	UUID     string       `json:"uuid"`
	Declared bool         `json:"declared"`
	Source   string       `json:"source,omitempty"`
	Expected disk.Digest  `json:"expectedChecksum"`
	Wanted   int          `json:"wanted"`            // copies declared; on all nodes together
	Ready    int          `json:"ready"`             // copies that are ready
	Message  string       `json:"message,omitempty"` // about the image, whatever its copies are
	Copies   []CopyStatus `json:"copies"`
}

// CopyStatus is one copy. Sizes are in bytes.
type CopyStatus struct {
	Node        string      `json:"node"`
	Disk        string      `json:"disk"`
	State       disk.State  `json:"state"`
	Progress    int         `json:"progress"` // 0..100; 100 is ready
	Done        int64       `json:"done,omitempty"`
	Total       int64       `json:"total,omitempty"` // -1: not known
	Message     string      `json:"message,omitempty"`
	Until       time.Time   `json:"until,omitzero"` // when a wait ends
	Format      disk.Format `json:"format,omitempty"`
	Size        int64       `json:"size"`
	VirtualSize int64       `json:"virtualSize"`
	RealSize    int64       `json:"realSize"`
	SHA512      disk.Digest `json:"sha512"`
	SHA256      disk.Digest `json:"sha256"`
	Owned       bool        `json:"owned"`
	Verified    time.Time   `json:"verified,omitzero"` // when its bytes were last right
	Damaged     time.Time   `json:"damaged,omitzero"`  // when they last were not; they may have been replaced since
	InUse       string      `json:"inUse,omitempty"`   // by what
	LastUsed    time.Time   `json:"lastUsed,omitzero"`
	Unwanted    time.Time   `json:"unwantedSince,omitzero"`
}

// Status shows the view together with what is under way.
func (v View) Status(under map[Key]Transfer) Status {
	s := Status{Node: v.Desired.Node, Time: v.Observed.Now, Plan: v.Plan, Disks: []DiskStatus{}, Images: []ImageStatus{}}
	s.Config = ConfigStatus{
		Digest: v.Config.Digest, Allowed: v.Desired.May.String(), Fault: v.Fault,
		Errors: texts(v.Config.Errors), Warnings: texts(v.Config.Warnings),
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.Observed.Disks), compareRefs) {
		s.Disks = append(s.Disks, v.diskStatus(ref))
	}
	plan := map[Key]Action{}
	for _, a := range v.Plan.Actions {
		plan[a.Key()] = a
	}
	now := v.Desired.scene(v.Observed)
	for _, id := range slices.SortedFunc(maps.Keys(v.ids()), compareIDs) {
		s.Images = append(s.Images, v.imageStatus(now, id, plan, under))
	}
	return s
}

// Missing counts the copies that this node's disks should have and that are not
// ready, whatever they wait for. A disk that is wanting is none of them, nor is
// anything as long as too much of the configuration is not known.
func (d Desired) Missing(o Observed) int {
	if d.May == schema.ObserveOnly {
		return 0
	}
	missing, now := 0, d.scene(o)
	for _, image := range d.Config.Images {
		for _, ref := range now.look(image).places.want {
			if _, ready := o.Disks[ref].ready(image.ID); d.mine(ref) && !ready {
				missing++
			}
		}
	}
	return missing
}

func texts(problems []schema.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

func (v View) diskStatus(ref schema.DiskRef) DiskStatus {
	seen := v.Observed.Disks[ref]
	declared, _ := v.Desired.disk(ref)
	return DiskStatus{
		Node: ref.Node, Disk: ref.Disk, Path: cmp.Or(seen.Path, declared.Path), UUID: seen.UUID, Problem: seen.Problem,
		Total: seen.Space.Total, Free: seen.Space.Free, Reserved: declared.StorageReserved,
		Foreign: append([]string{}, seen.Foreign...),
	}
}

// ids are the generations that are declared or lie on a disk.
func (v View) ids() map[disk.ID]bool {
	ids := map[disk.ID]bool{}
	for _, image := range v.Desired.Config.Images {
		ids[image.ID] = true
	}
	for _, seen := range v.Observed.Disks {
		for id := range seen.Copies {
			ids[id] = true
		}
	}
	for _, a := range v.Plan.Actions { // broken declarations are only there
		ids[a.Key().ID] = true
	}
	return ids
}

func (v View) imageStatus(now *scene, id disk.ID, plan map[Key]Action, under map[Key]Transfer) ImageStatus {
	s := ImageStatus{Name: id.Name, UUID: id.UUID, Copies: []CopyStatus{}}
	places := map[schema.DiskRef]bool{}
	if image, ok := v.Desired.Config.Images[id.Name]; ok && image.ID == id {
		view := now.look(image)
		s.Declared, s.Source, s.Expected = true, string(image.Source.Kind()), image.Checksum
		s.Wanted = len(view.places.want) + max(0, view.places.short)
		s.Ready = len(view.ready)
		for _, ref := range view.places.want {
			places[ref] = true
		}
	}
	for ref, seen := range v.Observed.Disks {
		if _, there := seen.Copies[id]; there {
			places[ref] = true
		}
	}
	s.Message = plan[Key{schema.DiskRef{Node: v.Desired.Node}, id}].Reason
	for _, ref := range slices.SortedFunc(maps.Keys(places), compareRefs) {
		s.Copies = append(s.Copies, v.copyStatus(Key{ref, id}, plan, under))
	}
	return s
}

func (v View) copyStatus(key Key, plan map[Key]Action, under map[Key]Transfer) CopyStatus {
	c, there := v.Observed.Disks[key.Disk].Copies[key.ID]
	if !there {
		c.State = disk.Pending
	}
	s := CopyStatus{
		Node: key.Disk.Node, Disk: key.Disk.Disk, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256,
		Owned: c.Owned, Verified: c.Verified, Damaged: c.Damaged, InUse: c.Using, LastUsed: c.LastUsed, Unwanted: c.UnwantedSince,
	}
	switch {
	case c.State == disk.Ready:
		s.Progress = 100
	case c.PartTotal > 0:
		s.Done, s.Total = c.PartBytes, c.PartTotal
		s.Progress = percent(s.Done, s.Total)
	}
	v.explain(&s, key, plan[key])
	if t, ok := under[key]; ok {
		s.follow(t)
	}
	return s
}

// explain says why a copy is as it is, from the plan.
func (v View) explain(s *CopyStatus, key Key, a Action) {
	switch {
	case s.Message != "" || a.Kind == "":
	case a.Idle():
		s.Message = a.Reason
	default: // follow says more, once it is under way
		s.Message = fmt.Sprintf("%s: %s; waits for its turn", a.Kind, a.Reason)
	}
	s.Until = a.Until
	if t := v.Observed.Tries[key]; t.Attempts > 0 && s.State != disk.Ready {
		s.State, s.Message = disk.Failed, t.Message
	}
}

// follow shows a transfer as far as it is now.
func (s *CopyStatus) follow(t Transfer) {
	s.Message = fmt.Sprintf("%s: %s", t.Action.Kind, t.Action.Reason)
	s.Done, s.Total = t.Progress.Done.Load(), t.Progress.Total.Load()
	if t.Action.Kind != Download && t.Action.Kind != Sync {
		return // it stays what it is meanwhile
	}
	s.State, s.Progress = disk.Starting, percent(s.Done, s.Total)
	if s.Done > 0 {
		s.State = disk.InProgress
	}
}

// percent never says 100: that is for what is ready.
func percent(done, total int64) int {
	if total <= 0 {
		return 0
	}
	return int(min(99, float64(done)/float64(total)*100))
}
