package peer

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/internal/jsonscan"
)

// Limits of a whole state. Scope has the limits that depend on the configuration.
const maxDisks = 1024

// Limits of single values.
const (
	maxName    = 253  // bytes of a name of a node or disk, or of a disk's uuid
	maxMessage = 1024 // bytes of a message; longer messages are truncated
	maxSize    = 1 << 50
	maxSpace   = 1 << 60 // bytes of a disk
	// maxElement limits the JSON that is in memory at once: a copy, or another value that is decoded. A real
	// copy has a few texts and 1 KiB of other fields; newer releases may add fields.
	maxElement = 64 << 10
)

// decodeState decodes the state of a peer, and keeps only what the scope needs. It ignores unknown fields and
// rejects invalid values. Each disk and copy is checked immediately after it is read, so decoding
// stops at the first invalid element.
func decodeState(r io.Reader, scope Scope) (model.Node, error) {
	d := &decoder{Scanner: jsonscan.New(r, maxElement), scope: scope, texts: texts{known: map[string]string{}, left: maxTexts}, state: model.Node{Disks: map[string]model.Disk{}}}
	if err := d.decodeState(); err != nil {
		return model.Node{}, fmt.Errorf("decode state: %w", err)
	}
	return d.state, nil
}

type decoder struct {
	*jsonscan.Scanner
	scope  Scope
	texts  texts
	state  model.Node
	name   string     // of the disk that is being decoded
	disk   model.Disk // the disk that is being decoded
	disks  int        // number of disks so far, with the disks that are left out
	copies int        // number of copies of all disks so far, with the copies that are left out

	current      int // copies of declared generations on this disk
	others, idle int // numbers of kept copies of the other two classes: see keeps
}

func (d *decoder) decodeState() error {
	err := d.Object(func(key string) error {
		if d.state.Version == 0 && key != "version" { // it is the first field: any other one may have another meaning
			return errVersion(0)
		}
		switch key {
		case "version":
			return d.decodeVersion()
		case "node":
			return d.Decode(&d.state.Node)
		case "configDigest":
			return d.Decode(&d.state.ConfigDigest)
		case "clock":
			return d.Decode(&d.state.Clock)
		case "mark":
			return d.Decode(&d.state.Mark)
		case "disks":
			return d.Object(d.decodeDisk)
		case "conditions":
			return d.Array(d.decodeCondition)
		}
		return d.Skip()
	})
	if err != nil {
		return err
	}
	if err := d.Finish(); err != nil {
		return err
	}
	if d.state.Version == 0 {
		return errVersion(0)
	}
	return d.checkNode()
}

// decodeVersion returns an error for another version than ours: in that version, all other fields may have another meaning.
func (d *decoder) decodeVersion() error {
	if err := d.Decode(&d.state.Version); err != nil {
		return err
	}
	if d.state.Version != model.Version {
		return errVersion(d.state.Version)
	}
	return nil
}

func errVersion(v int) error {
	return model.VersionError(v, model.Version, "run the same release of backing-image-manager on all nodes")
}

func (d *decoder) decodeCondition() error {
	var c model.Condition
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	if d.scope.hasImage(c.Image) && len(d.state.Conditions) < d.scope.maxConditions() {
		c.Kind, c.Image, c.Since = d.texts.keep(c.Kind), d.texts.keep(c.Image), disk.ValidTime(c.Since)
		d.state.Conditions = append(d.state.Conditions, c)
	}
	return nil
}

func (d *decoder) decodeDisk(name string) error {
	if d.disks++; d.disks > maxDisks {
		return fmt.Errorf("more than %d disks", maxDisks)
	}
	if err := checkNodeOrDiskName("disk", name); err != nil {
		return err
	}
	if _, twice := d.state.Disks[name]; twice {
		return fmt.Errorf("duplicate disk %q", name)
	}
	if declared := d.scope.Disks; declared != nil && !declared[name] {
		d.state.Partial = true
		return d.Skip()
	}
	d.name, d.disk, d.current = name, model.Disk{}, 0
	err := d.Object(func(key string) error {
		switch key {
		case "uuid":
			return d.Decode(&d.disk.UUID)
		case "problem":
			return d.Decode(&d.disk.Problem)
		case "readOnly":
			return d.Decode(&d.disk.ReadOnly)
		case "usageUnknown":
			return d.Decode(&d.disk.UsageUnknown)
		case "total":
			return d.Decode(&d.disk.Total)
		case "free":
			return d.Decode(&d.disk.Free)
		case "copies":
			d.disk.Copies = model.Copies{}
			return d.Array(d.decodeCopy)
		}
		return d.Skip()
	})
	if err != nil {
		return err
	}
	if err := d.checkDisk(); err != nil {
		return err
	}
	d.disk.Problem, d.disk.UsageUnknown = d.texts.keep(d.disk.Problem), d.texts.keep(d.disk.UsageUnknown)
	d.state.Disks[name] = d.disk
	return nil
}

func (d *decoder) decodeCopy() error {
	d.copies++
	var c model.Copy
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	if err := checkCopy(&c); err != nil {
		return fmt.Errorf("copy %d: %w", d.copies, err)
	}
	if _, twice := d.disk.Copies[c.ID]; twice {
		return fmt.Errorf("disk %q: duplicate copy %s", d.name, c.ID)
	}
	kept, err := d.keeps(&c)
	if err != nil || !kept {
		return err
	}
	texts := []*string{&c.Message, &c.UsedBy, &c.Rejection, &c.Reason.Text, (*string)(&c.Reason.Code), (*string)(&c.Job), &c.Mark}
	if c.Need != nil {
		texts = append(texts, &c.Need.By)
	}
	if c.Failure != nil {
		texts = append(texts, (*string)(&c.Failure.Op), &c.Failure.Message)
	}
	for _, text := range texts {
		*text = d.texts.keep(*text)
	}
	d.disk.Copies[c.ID] = c
	return nil
}

// keeps reports whether a copy is kept, and records that copies are left out. Each of three classes has
// its own limit, so no class can displace another class:
//
//   - copies of the declared generations: all are kept
//   - copies of other generations of declared images, and copies of undeclared images that are owned, in use
//     or needed: deletions of orphans depend on them, and images with the same bytes may use them
//   - all other copies: nobody needs them, and the status shows some of them
func (d *decoder) keeps(c *model.Copy) (bool, error) {
	switch uuid, declared := d.scope.Images[c.ID.Name]; {
	case declared && uuid == c.ID.UUID:
		if d.current++; d.current > len(d.scope.Images) {
			return false, fmt.Errorf("disk %q: duplicate copy %s", d.name, c.ID)
		}
		return true, nil
	case declared || c.Owned || c.UsedBy != "" || c.Need != nil || d.scope.Images == nil:
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

func (d *decoder) checkNode() error {
	if err := checkNodeOrDiskName("node", d.state.Node); err != nil {
		return err
	}
	if len(d.state.ConfigDigest) > maxName {
		return errors.New("the config digest is too long")
	}
	d.state.ConfigDigest, d.state.Mark = shortLine(d.state.ConfigDigest, maxName), shortLine(d.state.Mark, maxName)
	return nil
}

func (d *decoder) checkDisk() error {
	if len(d.disk.UUID) > maxName || d.disk.UUID != shortLine(d.disk.UUID, maxName) {
		return fmt.Errorf("disk %q: invalid uuid", d.name)
	}
	d.disk.Total, d.disk.Free = min(max(d.disk.Total, 0), maxSpace), min(max(d.disk.Free, 0), maxSpace)
	d.disk.Problem, d.disk.UsageUnknown = shortLine(d.disk.Problem, maxMessage), shortLine(d.disk.UsageUnknown, maxMessage)
	return nil
}

// checkCopy rejects a copy without a valid identity or with contradictory digests. It replaces other invalid values,
// truncates long messages, and drops the values that only the node of the copy uses.
func checkCopy(c *model.Copy) error {
	if err := errors.Join(ident.CheckName(c.ID.Name), ident.CheckUUID(c.ID.UUID)); err != nil {
		return err
	}
	*c = c.ForPeers()
	for _, size := range []*int64{&c.Size, &c.VirtualSize, &c.RealSize, &c.PartBytes, &c.PartTotal} {
		if *size < 0 || *size > maxSize { // an error would reject the whole state
			c.State, c.Message = model.Unknown, fmt.Sprintf("its node reports an impossible size: %d bytes", *size)
			*size = 0
		}
	}
	for _, t := range c.Times() {
		*t = disk.ValidTime(*t)
	}
	switch c.State {
	case model.Pending, model.Starting, model.InProgress, model.Ready, model.Failed, model.Unknown:
	default:
		c.State = model.Unknown
	}
	if _, err := model.ParseFormat(string(c.Format)); err != nil {
		c.Format = ""
	}
	if !c.SHA512.IsZero() && c.SHA512.Algorithm() != ident.SHA512 ||
		!c.SHA256.IsZero() && c.SHA256.Algorithm() != ident.SHA256 ||
		!c.ManifestDigest.IsZero() && c.ManifestDigest.Algorithm() != ident.SHA256 {
		return fmt.Errorf("%s: the algorithm of a digest does not match its field", c.ID)
	}
	if c.State == model.Ready && c.SHA512.IsZero() {
		c.State, c.Message = model.Unknown, "its node reports it as ready without a digest"
	}
	c.Message, c.UsedBy, c.Rejection = shortLine(c.Message, maxMessage), shortLine(c.UsedBy, maxMessage), shortLine(c.Rejection, maxMessage)
	c.Job, c.Mark = model.Op(shortLine(string(c.Job), maxName)), shortLine(c.Mark, maxName)
	c.Reason = model.Reason{Code: model.Code(shortLine(string(c.Reason.Code), maxName)), Text: shortLine(c.Reason.Text, maxMessage)}
	if c.Need != nil {
		if c.Need.By = shortLine(c.Need.By, maxMessage); c.Need.By == "" {
			c.Need = nil
		}
	}
	if c.Failure != nil {
		checkFailure(c.Failure)
	}
	return nil
}

func checkFailure(f *model.Failure) {
	f.Op, f.Message = model.Op(shortLine(string(f.Op), maxName)), shortLine(f.Message, maxMessage)
	f.Attempts = min(max(f.Attempts, 0), math.MaxInt32)
	f.Since, f.RetryAt = disk.ValidTime(f.Since), disk.ValidTime(f.RetryAt)
	if f.Fault != model.FaultDisk && f.Fault != model.FaultNetwork {
		f.Fault = model.FaultSource
	}
}

// checkNodeOrDiskName returns an error if s is not a valid name. noun is "node" or "disk", and begins the
// error.
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
	return truncate(text.Line(truncate(s))) // text.Line may replace a character by a longer one
}
