package status

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// observed returns the observation from which the status was made. With the same configuration,
// that observation gives the same plan. observed fails if s is not a complete status.
func (s Status) observed() (plan.Observed, error) {
	if s.Node == "" || s.Time.IsZero() || s.Disks == nil || s.Images == nil {
		return plan.Observed{}, errors.New("it lacks one of the fields node, time, disks and images")
	}
	if err := s.checkNames(); err != nil {
		return plan.Observed{}, err
	}
	o := plan.Observed{
		Now: s.Time, Disks: map[ident.DiskRef]plan.Disk{}, Peers: map[string]plan.Peer{}, Awaited: map[ident.CopyRef]time.Duration{},
		Failures: map[ident.CopyRef]plan.Failure{}, Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{}, CannotPrepare: map[ident.ID]string{}, BackedUp: map[ident.ID]bool{},
	}
	for _, p := range s.Peers {
		o.Peers[p.Node] = p.toPeer(s)
	}
	for _, one := range s.Disks {
		ref := ident.DiskRef{Node: one.Node, Disk: one.Disk}
		if _, twice := o.Disks[ref]; twice {
			return plan.Observed{}, fmt.Errorf("disk %s occurs twice", ref)
		}
		if one.Observed {
			o.Disks[ref] = one.toDisk(s)
		}
	}
	for _, image := range s.Images {
		id := ident.ID{Name: image.Name, UUID: image.UUID}
		if image.CannotPrepare != "" {
			o.CannotPrepare[id] = image.CannotPrepare
		}
		if image.BackedUp {
			o.BackedUp[id] = true
		}
		for _, c := range image.Copies {
			key := ident.CopyRef{Disk: ident.DiskRef{Node: c.Node, Disk: c.Disk}, ID: id}
			if err := addCopyStatus(o, key, c); err != nil {
				return plan.Observed{}, fmt.Errorf("copy %s: %w", key, err)
			}
		}
	}
	return o, nil
}

// checkNames rejects names that no configuration can have. A saved file may come from anybody, and
// plans print its names into terminals and pull requests (H5).
func (s Status) checkNames() error {
	places := []string{s.Node}
	for _, p := range s.Peers {
		places = append(places, p.Node)
	}
	for _, d := range s.Disks {
		places = append(places, d.Node, d.Disk)
	}
	for _, image := range s.Images {
		err := ident.CheckName(image.Name)
		if err == nil && image.UUID != "" { // an image with an invalid declaration has none
			err = ident.CheckUUID(image.UUID)
		}
		if err != nil {
			return fmt.Errorf("an image has an invalid %w", err)
		}
		for _, c := range image.Copies {
			places = append(places, c.Node, c.Disk)
		}
	}
	for _, name := range places {
		if !validName.MatchString(name) {
			return fmt.Errorf("invalid name of a node or disk: %.60q", name)
		}
	}
	return nil
}

// validName is the form of names of nodes and disks in a configuration.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// toPeer is the inverse of View.peers for one node.
func (p PeerStatus) toPeer(s Status) plan.Peer {
	peer := plan.Peer{Queried: p.Queried, Problem: p.Problem, ConfigDigest: p.Config, LastResponse: p.LastResponse, Outdated: p.Outdated, Omitted: p.Omitted}
	if p.Problem != "" && !p.UnreachableSince.IsZero() {
		peer.UnreachableFor = max(0, s.Time.Sub(p.UnreachableSince))
	}
	if !p.SkewSince.IsZero() {
		peer.OtherConfigFor = max(0, s.Time.Sub(p.SkewSince))
	}
	return peer
}

// toDisk is the inverse of View.diskStatus, without the copies.
func (d DiskStatus) toDisk(s Status) plan.Disk {
	var problemFor time.Duration
	if !d.ProblemSince.IsZero() {
		problemFor = s.Time.Sub(d.ProblemSince)
	}
	return plan.Disk{
		ProblemFor: problemFor,
		Path:       d.Path, UUID: d.UUID, Problem: d.Problem, ReadOnly: d.ReadOnly, Disputed: d.Disputed, UsageUnknown: d.UsageUnknown, ClockStepped: d.ClockStepped, Unmanaged: d.Unmanaged,
		Space: disk.Space{Total: d.Total, Free: d.Free}, Copies: map[ident.ID]plan.Copy{},
	}
}

// knownStates are the states that a disk can report. The others exist only with a running job.
var knownStates = []disk.State{disk.Pending, disk.Ready, disk.Failed, disk.Unknown}

// addCopyStatus adds the status c of the copy key to o, which has its disk.
func addCopyStatus(o plan.Observed, key ident.CopyRef, c CopyStatus) error {
	if c.Running {
		o.Running[key] = true
	}
	if c.Job != "" {
		o.Jobs[key] = plan.NewJob(c.Job, key)
	}
	if c.BeingRead {
		o.BeingRead[key] = true
	}
	if !c.AwaitedSince.IsZero() {
		o.Awaited[key] = o.Now.Sub(c.AwaitedSince)
	}
	if c.Failure != nil {
		t, err := c.Failure.toFailure()
		if err != nil {
			return err
		}
		o.Failures[key] = t
	}
	seen, known := o.Disks[key.Disk]
	if c.Demand != nil && known {
		if seen.Demands == nil {
			seen.Demands = map[ident.ID]plan.Demand{}
		}
		seen.Demands[key.ID] = plan.Demand{By: c.Demand.By, Since: c.Demand.Since, OtherWriter: c.Demand.OtherWriter}
		o.Disks[key.Disk] = seen
	}
	switch {
	case c.Found == nil:
		return nil
	case !known:
		return errors.New("its disk is missing or was not observed")
	case !slices.Contains(knownStates, c.Found.State):
		return fmt.Errorf("unknown state %q", c.Found.State)
	}
	seen.Copies[key.ID] = c.toCopy(key.ID)
	return nil
}

// toCopy returns the copy as it was observed on its disk. Found must not be nil.
func (c CopyStatus) toCopy(id ident.ID) plan.Copy {
	published := plan.Reason{}
	if c.Published != nil {
		published = *c.Published
	}
	return plan.Copy{
		Published: published,
		Copy: disk.Copy{
			ID: id, State: c.Found.State, Message: c.Found.Message, Format: c.Format,
			Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize,
			SHA512: c.SHA512, SHA256: c.SHA256, ManifestDigest: c.ManifestDigest, Signature: c.Signature, VerifiedAt: c.VerifiedAt, ReadBackAt: c.ReadBackAt, DamagedAt: c.DamagedAt,
			HasCfg: c.Found.HasCfg, HasIndex: c.Found.HasIndex, Owned: c.Owned, PartBytes: c.Found.PartBytes, PartTotal: c.Found.PartTotal, PartSourceID: c.Found.PartSourceID,
			InUseRecorded: c.Found.InUseRecorded, ClockNode: c.Found.ClockNode, LastUsed: c.LastUsed, SurplusSince: c.SurplusSince, ReplacedAt: c.ReplacedAt, Declaration: c.Found.Declaration,
		},
		UsedBy: c.InUse, Leaving: c.Leaving, Rejects: c.Rejection, RejectsForNow: c.RejectionTemporary,
		Unproven: c.Unproven,
	}
}
