package plan_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// goldenState is the state of a case: the node that plans, what it observes, and the requests
// to it.
type goldenState struct {
	t                   *testing.T
	config, before      schema.Config // the last one, and that of config.yaml
	node                string
	directoryUnreadable bool // the config directory cannot be read any more
	removed             func(string) bool
	verify              map[ident.CopyRef]bool
	cleanup             map[ident.CopyRef]bool
	uploads             map[ident.CopyRef]bool
	digest              string
	o                   plan.Observed
}

func parseState(t *testing.T, text string, before, r load.Result) goldenState {
	s := goldenState{t: t, config: r.Config, before: before.Config, digest: r.Digest, node: "node1", removed: plan.AlwaysConfirmed, verify: map[ident.CopyRef]bool{}, cleanup: map[ident.CopyRef]bool{}, uploads: map[ident.CopyRef]bool{}, o: plan.Observed{
		Now: plantest.Now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Awaited: map[ident.CopyRef]time.Duration{}, Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{}, Peers: map[string]model.Peer{},
		CannotPrepare: map[ident.ID]string{}, BackedUp: map[ident.ID]bool{},
	}}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := goldenWords.FindAllString(line, -1)
		if len(words) > 0 {
			s.line(words[0], words[1:])
		}
	}
	return s
}

// line reads one line: its first word, and the others.
func (s *goldenState) line(keyword string, words []string) {
	switch keyword {
	case "node":
		s.node = words[0]
	case "clock-stepped":
		for ref, seen := range s.o.Disks {
			seen.ClockStepped = true
			s.o.Disks[ref] = seen
		}
	case "directory-unreadable":
		s.directoryUnreadable = true
	case "removal-unconfirmed":
		s.removed = nil
	case "disk":
		s.disk(words)
	case "copy":
		s.copy(words)
	case "need":
		s.need(words)
	case "failure":
		s.failure(words)
	case "verify":
		s.verify[s.key(words)] = true
	case "cleanup":
		s.cleanup[s.key(words)] = true
	case "peer":
		s.peer(words)
	case "awaited":
		waited, err := time.ParseDuration(words[2])
		if err != nil {
			s.t.Fatal(err)
		}
		s.o.Awaited[s.key(words)] = waited
	case "running":
		s.running(words)
	case "being-read":
		s.o.BeingRead[s.key(words)] = true
	case "no-uploads":
		s.uploads = nil
	case "upload":
		s.uploads[s.key(words)] = true
	case "cannot-prepare":
		s.o.CannotPrepare[s.config.Images[words[0]].ID] = strings.Trim(words[1], `"`)
	case "backed-up":
		s.o.BackedUp[s.config.Images[words[0]].ID] = true
	default:
		s.t.Fatalf("state: unknown keyword %q", keyword)
	}
}

func (s *goldenState) ref(text string) ident.DiskRef {
	node, name, ok := strings.Cut(text, "/")
	if !ok {
		node, name = s.node, text
	}
	return ident.DiskRef{Node: node, Disk: name}
}

// key reads "<disk> <image>". The image is a name, for the declared generation, or <name>@<uuid>.
func (s *goldenState) key(words []string) ident.CopyRef {
	ref := s.ref(words[0])
	if name, uuid, ok := strings.Cut(words[1], "@"); ok {
		return ident.CopyRef{Disk: ref, ID: ident.ID{Name: name, UUID: uuid}}
	}
	image, declared := s.config.Images[words[1]]
	if !declared {
		s.t.Fatalf("state: image %q is not declared: add @uuid", words[1])
	}
	return ident.CopyRef{Disk: ref, ID: image.ID}
}

func (s *goldenState) disk(words []string) {
	d := model.Disk{Space: model.Space{Total: 100 << 30, Free: 50 << 30}, Copies: map[ident.ID]model.Copy{}}
	for _, w := range words[1:] {
		switch name, value := option(w); name {
		case "free":
			d.Space.Free = s.bytes(value)
		case "problem":
			d.Problem = value
		case "problem-for":
			d.ProblemSince = s.o.Now.Add(-s.duration(value))
		case "usage-unknown":
			d.UsageUnknown = value
		case "uuid":
			d.UUID = value
		case "read-only":
			d.ReadOnly = true
		default:
			s.t.Fatalf("disk: unknown option %q", w)
		}
	}
	s.o.Disks[s.ref(words[0])] = d
	s.o.FindDisputedDisks()
}

func (s *goldenState) copy(words []string) {
	key := s.key(words)
	c := model.Copy{ID: key.ID, State: model.State(words[2]), HasCfg: true, Owned: true}
	if c.State != model.Pending {
		c.Size, c.RealSize, c.Format = 1<<30, 1<<30, model.Raw
	}
	if c.State == model.Ready {
		c.SHA512 = plantest.Digest(ident.SHA512, "a")
		c.ManifestDigest = plantest.Digest(ident.SHA256, "chunks")
	}
	c.Declaration = s.config.Images[key.ID.Name].Declaration
	for _, w := range words[3:] {
		s.copyOption(&c, w)
	}
	s.o.Disks[key.Disk].Copies[key.ID] = c
}

func (s *goldenState) copyOption(c *model.Copy, word string) {
	switch name, value := option(word); name {
	case "sha512":
		c.SHA512 = plantest.Digest(ident.SHA512, value)
	case "sha256":
		c.SHA256 = plantest.Digest(ident.SHA256, value)
	case "real-size":
		c.RealSize = s.bytes(value)
	case "message":
		c.Message = value
	case "used-by":
		c.UsedBy = value
	case "recorded-in-use":
		c.InUseRecorded = true
	case "leaving":
		c.Leaving = true
	case "unproven":
		c.Unproven = true
	case "rejects":
		c.Rejection = value
	case "for-now":
		c.RejectionTemporary = true
	case "no-manifest":
		c.ManifestDigest = ident.Digest{}
	case "manifest":
		c.ManifestDigest = plantest.Digest(ident.SHA256, "chunks")
	case "unmanaged":
		c.Owned = false
	case "no-cfg":
		c.HasCfg = false
	case "partial":
		has, total, _ := strings.Cut(value, "/")
		c.PartBytes, c.PartTotal = s.bytes(has), s.bytes(total)
	case "partial-from":
		c.PartKind = model.PartKind(value)
	case "last-used":
		c.LastUsed = s.time(value)
	case "damaged-at":
		c.DamagedAt = s.time(value)
	case "surplus-since":
		c.SurplusSince = s.time(value)
	case "replaced":
		c.ReplacedAt = s.time(value)
	case "read-back":
		c.ReadBackAt = s.time(value)
	case "verified":
		c.VerifiedAt = s.time(value)
	case "declared-by": // the manifest KIND/NAME in config.yaml; without a value: an image of config.yaml
		kind, manifest, _ := strings.Cut(value, "/")
		c.Declaration = model.Declaration{File: "config.yaml", Kind: kind, Name: manifest}
	default:
		s.t.Fatalf("copy: unknown option %q", word)
	}
}

func (s *goldenState) need(words []string) {
	key := s.key(words)
	d := model.Need{By: "replica vol-1-r-1a2b3c4d", Since: s.o.Now.Add(-time.Hour)}
	for _, w := range words[2:] {
		switch name, value := option(w); name {
		case "since":
			d.Since = s.time(value)
		case "other-writer":
			d.OtherWriter = s.time(value)
		default:
			s.t.Fatalf("need: unknown option %q", w)
		}
	}
	seen := s.o.Disks[key.Disk]
	if seen.Needs == nil {
		seen.Needs = map[ident.ID]model.Need{}
	}
	seen.Needs[key.ID] = d
	s.o.Disks[key.Disk] = seen
}

func (s *goldenState) failure(words []string) {
	f := model.Failure{Attempts: 1, Since: s.o.Now, Message: "it failed"}
	for _, w := range words[2:] {
		switch name, value := option(w); name {
		case "op":
			f.Op = model.Op(value)
		case "attempts":
			f.Attempts, _ = strconv.Atoi(value)
		case "since":
			f.Since = s.time(value)
		case "retry-at":
			f.RetryAt = s.time(value)
		case "message":
			f.Message = value
		case "needs-space":
			f.NeedsSpace = s.bytes(value)
		case "suspect":
			on, image, _ := strings.Cut(value, ":")
			f.Suspects = append(f.Suspects, s.key([]string{on, cmp.Or(image, words[1])}))
		case "final":
			f.Final = true
		case "fault":
			switch value {
			case "disk":
				f.Fault = model.FaultDisk
			case "network":
				f.Fault = model.FaultNetwork
			default:
				s.t.Fatalf("failure: unknown fault %q", value)
			}
		case "unrepairable":
			f.Unrepairable = true
		default:
			s.t.Fatalf("failure: unknown option %q", w)
		}
	}
	s.o.Failures[s.key(words)] = f
}

// running reads a job. Without an operation a job of this node is one of the kind of the source. It began with the
// declaration of the last configuration, or of config.yaml with "before".
func (s *goldenState) running(words []string) {
	key := s.key(words)
	s.o.Running[key] = true
	if key.Disk.Node != s.node {
		return
	}
	image, declared := s.config.Images[key.ID.Name]
	j, op := plan.Job{Image: image}, model.Op("")
	if declared {
		op = model.Op(strings.TrimSuffix(string(image.Source.Kind()), "FromVolume"))
	}
	for _, w := range words[2:] {
		switch name, value := option(w); name {
		case "op":
			op = model.Op(value)
		case "sha512":
			j.Action.SourceDigest = plantest.Digest(ident.SHA512, value)
		case "before":
			j.Image = s.before.Images[key.ID.Name]
		default:
			s.t.Fatalf("running: unknown option %q", w)
		}
	}
	digest := j.Action.SourceDigest
	j.Action = plan.NewAction(op, key, model.Reason{Code: plan.CodeNoCopy, Text: "began before"}, plan.UnknownBytes)
	j.Action.SourceDigest = digest
	s.o.Jobs[key] = j
}

// peer reads a peer, which responds and has the same configuration unless an option says
// otherwise.
func (s *goldenState) peer(words []string) {
	p := model.Peer{Queried: true, ConfigDigest: s.digest}
	for _, w := range words[1:] {
		switch name, value := option(w); name {
		case "unreachable":
			p.UnreachableSince, p.Problem = s.o.Now.Add(-s.duration(value)), cmp.Or(p.Problem, "connection refused")
		case "responded":
			p.LastResponse = s.time(value)
		case "problem":
			p.Problem = value
		case "config":
			p.ConfigDigest = value
		case "omitted":
			p.Omitted, _ = strconv.Atoi(value)
		case "outdated":
			p.Outdated = true
		case "other-config-for":
			p.OtherConfigSince = s.o.Now.Add(-s.duration(value))
		case "unqueried":
			p = model.Peer{Problem: "not queried yet"}
		default:
			s.t.Fatalf("peer: unknown option %q", w)
		}
	}
	s.o.Peers[words[0]] = p
}

// paths returns paths for the observed disks if the configuration declares no nodes.
func (s *goldenState) paths(c schema.Config) []string {
	if len(c.Nodes) > 0 {
		return nil
	}
	var paths []string
	for range s.o.Disks {
		paths = append(paths, fmt.Sprintf("/disk%d", len(paths)+1))
	}
	return paths
}

func (s *goldenState) bytes(text string) int64 {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return int64(n)
}

func (s *goldenState) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// time reads "-2h" or "+5m", relative to the time of the observation, "now", or a date.
func (s *goldenState) time(text string) time.Time {
	if text == "now" {
		return s.o.Now
	}
	if d, err := time.ParseDuration(text); err == nil {
		return s.o.Now.Add(d)
	}
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		s.t.Fatal(err)
	}
	return at
}

func option(word string) (name, value string) {
	name, value, _ = strings.Cut(word, "=")
	return name, strings.Trim(value, `"`)
}
