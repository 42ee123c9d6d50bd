package peer

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/printable"
)

// Limits of a State from a peer. Scope has those that depend on the configuration.
const (
	maxDisks  = 1024
	maxFields = 256 // of one JSON object
)

// Limits of single values.
const (
	maxName    = 253  // bytes of a name of a node or disk, or of a disk's uuid
	maxMessage = 1024 // bytes of a message; longer messages are truncated
	maxSize    = 1 << 50
	maxSpace   = 1 << 60 // bytes of a disk
	maxSeconds = 1e9
)

// decodeState reads a State from a peer, as far as the scope needs it. It ignores unknown fields and
// rejects invalid values. Each disk and copy is checked immediately after it is read, so decoding
// stops at the first invalid element.
func decodeState(r io.Reader, scope Scope) (State, error) {
	d := &decoder{scanner: newScanner(r), scope: scope, texts: newTexts()}
	if err := d.decodeState(); err != nil {
		return State{}, fmt.Errorf("decode state: %w", err)
	}
	return d.state, nil
}

type decoder struct {
	*scanner
	scope  Scope
	texts  texts
	state  State
	disk   Disk // the disk that is being decoded
	disks  int  // number of disks so far, also of those that are left out
	copies int  // number of copies of all disks so far, also of those that are left out

	current      int // copies of declared generations on this disk
	others, idle int // other copies that were kept: see keeps
}

func (d *decoder) decodeState() error {
	err := d.object(func(key string) error {
		switch key {
		case "node":
			return d.decode(&d.state.Node)
		case "config":
			return d.decode(&d.state.Config)
		case "clock":
			return d.decode(&d.state.Clock)
		case "mark":
			return d.decode(&d.state.Mark)
		case "disks":
			return d.array(d.decodeDisk)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if err := d.finish(); err != nil {
		return err
	}
	return d.state.check()
}

func (d *decoder) decodeDisk() error {
	if d.disks++; d.disks > maxDisks {
		return fmt.Errorf("more than %d disks", maxDisks)
	}
	d.disk, d.current = Disk{}, 0
	err := d.object(func(key string) error {
		switch key {
		case "name":
			return d.decode(&d.disk.Name)
		case "uuid":
			return d.decode(&d.disk.UUID)
		case "problem":
			return d.decode(&d.disk.Problem)
		case "readOnly":
			return d.decode(&d.disk.ReadOnly)
		case "unclear":
			return d.decode(&d.disk.UsageUnknown)
		case "total":
			return d.decode(&d.disk.Total)
		case "free":
			return d.decode(&d.disk.Free)
		case "copies":
			if d.disk.Name != "" && !d.scope.hasDisk(d.disk.Name) { // every version sends the name first
				return d.skip()
			}
			return d.array(d.decodeCopy)
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	if err := d.disk.check(); err != nil {
		return err
	}
	if !d.scope.hasDisk(d.disk.Name) {
		d.state.Partial = true
		return nil
	}
	d.disk.Problem, d.disk.UsageUnknown = d.texts.keep(d.disk.Problem), d.texts.keep(d.disk.UsageUnknown)
	d.state.Disks = append(d.state.Disks, d.disk)
	return nil
}

func (d *decoder) decodeCopy() error {
	d.copies++
	var c Copy
	if err := d.decode(&c); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	kept, err := d.keeps(&c)
	if err != nil || !kept {
		return err
	}
	for _, text := range []*string{&c.Message, &c.UsedBy, &c.Demand, &c.Action, &c.Rejection, &c.Reason, &c.ReasonCode, &c.Mark} {
		*text = d.texts.keep(*text)
	}
	if c.Failure != nil {
		c.Failure.Action, c.Failure.Message = d.texts.keep(c.Failure.Action), d.texts.keep(c.Failure.Message)
	}
	d.disk.Copies = append(d.disk.Copies, c)
	return nil
}

// keeps reports whether a copy is kept, and notes what is left out. Three classes have limits of their
// own, so that none can displace another one:
//
//   - copies of the declared generations: as many as there are
//   - copies of other generations, and those of images that are not declared which are orphans, in
//     use or needed: they decide about the deletion of orphans, and may be read by images with the same bytes
//   - all other copies: nobody needs them, and the status shows some
func (d *decoder) keeps(c *Copy) (bool, error) {
	switch uuid, declared := d.scope.Images[c.Name]; {
	case declared && uuid == c.UUID:
		if d.current++; d.current > len(d.scope.Images) {
			return false, fmt.Errorf("disk %q: duplicate copy %s", d.disk.Name, c.ID)
		}
		return true, nil
	case declared || c.Owned || c.UsedBy != "" || c.Demand != "" || d.scope.Images == nil:
		if d.others == d.scope.maxOthers() {
			d.state.Omitted++
			return false, nil
		}
		d.others++
		return true, nil
	}
	if d.idle == maxIdle {
		d.state.Partial = true
		return false, nil
	}
	d.idle++
	return true, nil
}

func (s *State) check() error {
	if err := checkNodeOrDiskName("node", s.Node); err != nil {
		return err
	}
	if len(s.Config) > maxName {
		return errors.New("the config digest is too long")
	}
	s.Config, s.Mark = shortLine(s.Config, maxName), shortLine(s.Mark, maxName)
	slices.SortFunc(s.Disks, func(a, b Disk) int { return strings.Compare(a.Name, b.Name) })
	for i := range s.Disks[min(1, len(s.Disks)):] {
		if s.Disks[i].Name == s.Disks[i+1].Name {
			return fmt.Errorf("duplicate disk %q", s.Disks[i].Name)
		}
	}
	return nil
}

func (d *Disk) check() error {
	if err := checkNodeOrDiskName("disk", d.Name); err != nil {
		return err
	}
	if len(d.UUID) > maxName || d.UUID != shortLine(d.UUID, maxName) {
		return fmt.Errorf("disk %q: invalid uuid", d.Name)
	}
	d.Total, d.Free = min(max(d.Total, 0), maxSpace), min(max(d.Free, 0), maxSpace)
	d.Problem, d.UsageUnknown = shortLine(d.Problem, maxMessage), shortLine(d.UsageUnknown, maxMessage)
	slices.SortFunc(d.Copies, compareByID)
	for i := range d.Copies[min(1, len(d.Copies)):] {
		if d.Copies[i].ID == d.Copies[i+1].ID {
			return fmt.Errorf("disk %q: duplicate copy %s", d.Name, d.Copies[i].ID)
		}
	}
	return nil
}

func compareByID(a, b Copy) int {
	if byName := strings.Compare(a.Name, b.Name); byName != 0 {
		return byName
	}
	return strings.Compare(a.UUID, b.UUID)
}

// check rejects a copy without a valid identity or with contradictory digests. It accepts other
// values from a newer peer: unknown words are replaced, and long messages are truncated.
func (c *Copy) check() error {
	if err := errors.Join(ident.CheckName(c.Name), ident.CheckUUID(c.UUID)); err != nil {
		return err
	}
	for _, size := range []*int64{&c.Size, &c.VirtualSize, &c.RealSize, &c.PartBytes, &c.PartTotal} {
		if *size < 0 || *size > maxSize { // only this copy is affected
			c.State, c.Message = disk.Unknown, fmt.Sprintf("its node reports a size of %d bytes", *size)
			*size = 0
		}
	}
	for _, t := range []*time.Time{&c.VerifiedAt, &c.ReadBackAt, &c.DamagedAt, &c.LastUsed, &c.SurplusSince, &c.ReplacedAt, &c.DemandSince} {
		*t = disk.ValidTime(*t)
	}
	switch c.State {
	case disk.Pending, disk.Starting, disk.InProgress, disk.Ready, disk.Failed, disk.Unknown:
	default:
		c.State = disk.Unknown
	}
	if _, err := disk.ParseFormat(string(c.Format)); err != nil {
		c.Format = ""
	}
	if !c.SHA512.IsZero() && c.SHA512.Algorithm() != ident.SHA512 ||
		!c.SHA256.IsZero() && c.SHA256.Algorithm() != ident.SHA256 ||
		!c.ManifestDigest.IsZero() && c.ManifestDigest.Algorithm() != ident.SHA256 {
		return fmt.Errorf("%s: the algorithm of a digest does not match its field", c.ID)
	}
	if c.State == disk.Ready && c.SHA512.IsZero() {
		c.State, c.Message = disk.Unknown, "its node reports it as ready without a digest"
	}
	c.Message, c.UsedBy, c.Demand = shortLine(c.Message, maxMessage), shortLine(c.UsedBy, maxMessage), shortLine(c.Demand, maxMessage)
	c.Action, c.Rejection = shortLine(c.Action, maxName), shortLine(c.Rejection, maxMessage)
	c.Reason, c.ReasonCode = shortLine(c.Reason, maxMessage), shortLine(c.ReasonCode, maxName)
	c.Mark = shortLine(c.Mark, maxName)
	if c.Failure != nil {
		c.Failure.check()
	}
	return nil
}

func (f *Failure) check() {
	f.Action, f.Message = shortLine(f.Action, maxName), shortLine(f.Message, maxMessage)
	f.Attempts = min(max(f.Attempts, 0), math.MaxInt32)
	f.Since = min(max(f.Since, -maxSeconds), 0)
	f.RetryIn = min(max(f.RetryIn, -maxSeconds), maxSeconds)
}

// checkNodeOrDiskName returns an error if s is not a valid name of a node or disk. The error begins
// with noun.
func checkNodeOrDiskName(noun, s string) error {
	if s == "" || len(s) > maxName || s != shortLine(s, maxName) {
		return fmt.Errorf("%s %q: invalid name", noun, shortLine(s, maxName))
	}
	return nil
}

// shortLine returns s for a terminal or a log: one line of at most n bytes.
func shortLine(s string, n int) string {
	truncate := func(s string) string {
		if len(s) <= n {
			return s
		}
		return strings.ToValidUTF8(s[:n], "")
	}
	return truncate(printable.Line(truncate(s))) // characters may be replaced by longer ones
}
