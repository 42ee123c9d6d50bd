package load

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func digest(t *testing.T, text string) ident.Digest {
	t.Helper()
	var d ident.Digest
	if err := d.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDefaults(t *testing.T) {
	c := mustLoad(t, "nodes: {n1: {disks: {d1: {path: /d1}}}}\nimages: {parrot: {source: {download: {url: \"https://example.com/x.gz\"}}}}\n")
	wantSettings := schema.Settings{
		CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, MinNumberOfCopies: 1, FollowReplicas: true,
		ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50), PruneConfirmed: []ident.ID{},
	}
	if !reflect.DeepEqual(c.Settings, wantSettings) {
		t.Errorf("settings are\n%+v, want\n%+v", c.Settings, wantSettings)
	}
	wantNode := schema.Node{Tags: []string{}, AllowScheduling: true, Disks: map[string]schema.Disk{"d1": {Path: "/d1", Tags: []string{}, AllowScheduling: true}}, Pos: document.Position{File: "config.yaml", Line: 1, Column: 9}}
	if !reflect.DeepEqual(c.Nodes["n1"], wantNode) {
		t.Errorf("node is\n%+v, want\n%+v", c.Nodes["n1"], wantNode)
	}
	wantImage := schema.Image{
		ID: ident.ID{Name: "parrot", UUID: c.Images["parrot"].ID.UUID}, Copies: 1, Pos: document.Position{File: "config.yaml", Line: 2, Column: 10},
		Source:       schema.Source{Download: &schema.Download{URL: "https://example.com/x.gz", Mirrors: []string{}, Unpack: schema.UnpackGzip, MaxSize: 1 << 40}},
		NodeSelector: []string{}, DiskSelector: []string{}, Disks: []ident.DiskRef{}, FollowReplicas: true, Declaration: model.Declaration{File: "config.yaml"},
	}
	if !reflect.DeepEqual(c.Images["parrot"], wantImage) {
		t.Errorf("image is\n%+v, want\n%+v", c.Images["parrot"], wantImage)
	}
}

// A time may be in a year that JSON does not have once it is in UTC. The configuration could not be
// encoded then, not even for its digest.
func TestTimeOutsideOfTheYearsOfJSONIsInvalid(t *testing.T) {
	for _, until := range []string{"9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"} {
		r := load(t, "images: {parrot: {source: {upload: {}}, suspend: {reason: x, until: \""+until+"\"}}}\n")
		if len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Message, "not a valid time") {
			t.Errorf("%s: the errors are %v", until, r.Errors)
		}
	}
}

func TestEveryFieldIsDecoded(t *testing.T) {
	b, err := os.ReadFile("testdata/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, string(b))
	s := c.Settings
	if s.CleanupWaitInterval != 90*time.Second || s.RecoveryWaitInterval != 2500*time.Millisecond || s.ScrubInterval != 30*24*time.Hour ||
		s.PruneLimit != schema.PruneCount(3) || s.ConcurrentReplenishPerNodeLimit != 0 || s.PruneConfirmed[0].String() != "old-00000001" {
		t.Errorf("settings are %+v", s)
	}
	first := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	if by := s.Suspend; by == nil || *by != (schema.Suspension{Reason: "freeze", Until: first.Add(5 * time.Hour)}) || !by.Active(first) || by.Active(first.Add(5*time.Hour)) {
		t.Errorf("settings.suspend is %+v", s.Suspend)
	}
	if by := c.Images["uploaded"].Suspend; by == nil || *by != (schema.Suspension{Reason: "not tested", By: "ann", Until: first}) {
		t.Errorf("suspend of uploaded is %+v", by)
	}
	n := c.Nodes["node1"]
	if n.Address != "http://10.0.0.1:8000" || n.Disks["disk1"].StorageReserved != 10<<30 || n.Disks["disk1"].Path != "/var/lib/longhorn" ||
		strings.Join(n.Tags, " ") != "big edge" || n.AllowScheduling || !n.EvictionRequested {
		t.Errorf("node1 is %+v", n)
	}
	m := c.Images["downloaded"]
	if !m.AllDisks || m.BandwidthLimit != 10<<20 || m.Disks[0] != (ident.DiskRef{Node: "node2", Disk: "a"}) || m.Format != model.Raw ||
		m.KeepGenerations != 2 || m.FollowReplicas || m.Source.Download.Index != "https://example.com/image.raw.caibx" || m.Source.Download.Store != "s3://bucket/default.castr" ||
		m.Source.Download.MaxSize != 100<<30 || m.Source.Download.Unpack != schema.UnpackXZ || m.Source.Download.PackedChecksum.Algorithm() != ident.SHA256 {
		t.Errorf("downloaded is %+v, %+v", m, m.Source.Download)
	}
	if want := (schema.Verify{Scheme: schema.VerifyOpenPGP, Keys: "alma", SignatureURL: "https://example.com/SHA256SUMS.asc"}); m.Verify == nil || *m.Verify != want {
		t.Errorf("verify of downloaded is %+v", m.Verify)
	}
	if v := s.Verify; v == nil || !v.Required || !slices.Equal(v.Exempt, []string{"exported", "lab-*"}) {
		t.Errorf("settings.verify is %+v", v)
	}
	if r := s.Report; r == nil || r.Credentials != "reports" || r.URLOf("node-1.b") != "https://status.example.com/edge/node-1.b.json?key=1" {
		t.Errorf("settings.report is %+v", r)
	}
	if n := s.Notify; n == nil || *n != (schema.Notify{URL: "https://alerts.example.com/api/v2/alerts", Format: schema.NotifyAlertmanager, Credentials: "alerts", Cluster: "edge-7"}) {
		t.Errorf("settings.notify is %+v", n)
	}
	if want := "https://git.example.com/edit/main/{file}"; s.Web.EditURL != want {
		t.Errorf("settings.web is %+v", s.Web)
	}
	if !c.Images["uploaded"].FollowReplicas {
		t.Error("uploaded does not have followReplicas of the settings")
	}
	if c.Images["uploaded"].Copies != 2 || c.Images["exported"].Copies != 1 {
		t.Errorf("copies: uploaded %d, want 2 from the settings; exported %d, want 1", c.Images["uploaded"].Copies, c.Images["exported"].Copies)
	}
	for name, kind := range map[string]schema.SourceKind{"downloaded": schema.KindDownload, "uploaded": schema.KindUpload, "exported": schema.KindExportFromVolume, "restored": schema.KindRestore, "secured": schema.KindClone} {
		if got := c.Images[name].Source.Kind(); got != kind {
			t.Errorf("%s is of kind %s, want %s", name, got, kind)
		}
	}
}

func TestDigestDoesNotDependOnFiles(t *testing.T) {
	race.Skip(t)
	of := func(files ...configdir.File) string {
		r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: files})
		if r.Digest == "" {
			t.Fatalf("no digest:\n%s", describe(r))
		}
		return r.Digest
	}
	one := of(configdir.File{Path: "a.yaml", Data: []byte("settings: {minNumberOfCopies: 2}\nimages:\n  a1: {source: {upload: {}}, nodeSelector: [x, y]}\n  b1: {source: {upload: {}}}\n")})
	two := of(
		configdir.File{Path: "x/b.json", Data: []byte(`{"images": {"b1": {"source": {"upload": {}}, "minNumberOfCopies": 0}}}`)},
		configdir.File{Path: "x/c.cue", Data: []byte("images: a1: {nodeSelector: [\"y\", \"x\", \"y\"], source: upload: {}}\n")},
		configdir.File{Path: "x/d.yaml", Data: []byte("settings: {minNumberOfCopies: 2}\n")},
	)
	if one != two {
		t.Error("the same configuration in other files has another digest")
	}
	same := of(configdir.File{Path: "a.yaml", Data: []byte("settings: {minNumberOfCopies: 2, followReplicas: true}\nimages:\n  a1: {source: {upload: {}}, nodeSelector: [x, y], followReplicas: true}\n  b1: {source: {upload: {}}}\n")})
	if one != same {
		t.Error("a default that is declared changes the digest")
	}
	for name, text := range map[string]string{
		"an image":    "images: {a1: {source: {upload: {}}}}",
		"a setting":   "settings: {minNumberOfCopies: 2}",
		"a source":    "images: {a1: {source: {download: {url: \"https://example.com\"}}}}",
		"a mirror":    "images: {a1: {source: {download: {url: \"https://example.com\", mirrors: [\"https://m.example.com\"]}}}}",
		"an index":    "images: {a1: {source: {download: {url: \"https://example.com\", index: \"https://example.com/i\"}}, checksum: \"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}}",
		"a store":     "images: {a1: {source: {download: {url: \"https://example.com\", index: \"https://example.com/i\", store: \"s3://bucket/castr\"}}, checksum: \"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}}",
		"generations": "images: {a1: {source: {upload: {}}, keepGenerations: 1}}",
		"replicas":    "images: {a1: {source: {upload: {}}, followReplicas: false}}",
		"a default":   "settings: {followReplicas: false}\nimages: {a1: {source: {upload: {}}, followReplicas: true}}",
		"a node":      "nodes: {n1: {}}",
		"a node tag":  "nodes: {n1: {tags: [x]}}",
	} {
		if d := of(configdir.File{Path: "a.yaml", Data: []byte(text)}); d == one {
			t.Errorf("%s does not change the digest", name)
		} else {
			one = d // each digest must differ from the one before
		}
	}
}

func TestPruneLimitExceeded(t *testing.T) {
	for _, c := range []struct {
		limit             schema.PruneLimit
		declared, orphans int
		exceeded          bool
	}{
		{schema.PruneCount(0), 0, 1, false},
		{schema.PruneCount(0), 10, 2, true},
		{schema.PruneCount(2), 0, 2, false},
		{schema.PruneCount(2), 100, 3, true},
		{schema.PrunePercent(50), 0, 1, false},
		{schema.PrunePercent(50), 0, 2, true},
		{schema.PrunePercent(50), 2, 2, false},
		{schema.PrunePercent(50), 2, 3, true},
		{schema.PrunePercent(0), 100, 2, true},
		{schema.PrunePercent(100), 0, 100, false},
	} {
		if got := c.limit.Exceeded(c.declared, c.orphans); got != c.exceeded {
			t.Errorf("limit %s with %d orphans and %d images: exceeded is %t, want %t", c.limit, c.orphans, c.declared, got, c.exceeded)
		}
	}
}

// TestInvalidNamesAreRejected: no name may lead out of the folder of its image.
func TestInvalidNamesAreRejected(t *testing.T) {
	race.Skip(t)
	for name, good := range map[string]bool{
		"a": false, "ab": true, strings.Repeat("a", 40): true, strings.Repeat("a", 41): false, "Ab": false, "aB": false,
		"-a": false, ".": false, "..": false, ".a": false, "a/b": false, "a\n": false, "a\x00": false, "ä1": false, "a b": false,
		"a..": true, "parrot-6846a0b2": true, "1": false, "11": true, "": false, "../../etc": false,
	} {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		r := load(t, "images: {"+string(quoted)+": {source: {upload: {}}}}")
		if _, ok := r.Config.Images[name]; ok != good || (r.Allowed == schema.Everything) != good {
			t.Errorf("name %q: accepted is %t, want %t\n%s", name, ok, good, describe(r))
		}
		if good {
			if id, err := ident.ParseID(r.Config.Images[name].ID.String()); err != nil || id.Name != name {
				t.Errorf("the folder of %q parses as %v, %v", name, id, err)
			}
		}
	}
}

func TestUnreadableFileAffectsOnlyItself(t *testing.T) {
	for name, f := range map[string]configdir.File{
		"error":  {Path: "a.yaml", Err: errors.New("permission denied")},
		"zero":   {Path: "a.yaml", Data: []byte("images: {}\n\x00")},
		"latin1": {Path: "a.yaml", Data: []byte("# gr\xfcn\nimages: {}\n")},
		"large":  {Path: "a.yaml", Data: make([]byte, configdir.MaxFile+1)},
		"cue":    {Path: "a.cue", Data: []byte("images: {}\n\x00")},
		"cuerr":  {Path: "a.cue", Err: errors.New("permission denied")},
	} {
		t.Run(name, func(t *testing.T) {
			fine := configdir.File{Path: "b.yaml", Data: []byte("images: {parrot: {source: {upload: {}}}}")}
			r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{f, fine}})
			if len(r.Errors) != 1 || r.Errors[0].File != f.Path || r.Allowed != schema.ObserveOnly || r.Digest != "" {
				t.Errorf("got\n%s", describe(r))
			}
			if len(r.Config.Images) != 1 {
				t.Errorf("the other file was not read:\n%s", describe(r))
			}
		})
	}
}

func TestByteOrderMarkIsIgnored(t *testing.T) {
	for _, path := range []string{"a.yaml", "a.json"} {
		r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: path, Data: []byte("\ufeff{\"images\": {}}")}}})
		if r.Allowed != schema.Everything {
			t.Errorf("%s: %s", path, describe(r))
		}
	}
}

func TestIntervals(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "250ms": 250 * time.Millisecond, "1m30s": 90 * time.Second, "0s": 0,
	} {
		if got, err := interval(text, time.Minute); err != nil || got != want {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1k": 1000, "1Ki": 1024, "1.5Gi": 3 << 29, "0.1": 1, "1Pi": 1 << 50, "10M": 10_000_000,
	} {
		if got, err := quantity(text); err != nil || got != want {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
}
