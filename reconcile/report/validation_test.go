package report

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

const everything = `
settings:
  cleanupWaitInterval: 90s
  recoveryWaitInterval: 10
  minNumberOfCopies: 2
  concurrentReplenishPerNodeLimit: 0
  pruneLimit: 3
  pruneConfirmed: [old-6846a0b2]
  scrubInterval: 30d
  allowLoopbackSources: true
nodes:
  node1:
    address: http://10.0.0.1:8000
    tags: [edge]
    allowScheduling: false
    disks: {disk1: {path: /d1, tags: [ssd], storageReserved: 10Gi, evictionRequested: true}}
images:
  parrot:
    source: {download: {url: "https://x.example/p.raw.xz", mirrors: ["https://y.example/p.xz"], credentials: vendor,
      checksumURL: "https://x.example/SUMS", packedChecksum: "sha256:SUM", maxSize: 10Gi}}
    format: qcow2
    minNumberOfCopies: all
    nodeSelector: [edge]
    diskSelector: [ssd]
    disks: [node1/disk1]
    bandwidthLimit: 10Mi
  inbox: {source: {upload: {}}, checksum: "sha256:SUM"}
  export: {source: {exportFromVolume: {volumeName: vol, snapshotName: snap, exportType: qcow2}}}
  backup: {source: {restore: {backupURL: "s3://bucket@region/?backingImage=x1", credentials: s3}}, uuid: "6846a0b2"}
  copy: {source: {clone: {backingImage: inbox, encryption: encrypt, secret: key}}}
`

func loadText(t *testing.T, name, text string) load.Result {
	t.Helper()
	r := load.NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: name, Data: []byte(text)}}})
	for _, p := range r.Errors {
		t.Errorf("%s", p)
	}
	return r
}

// The configuration in the JSON of validate is a valid configuration with the same meaning. Two
// things differ: addresses have no query, and every uuid is declared.
func TestPrintedConfigurationCanBeLoadedAgain(t *testing.T) {
	want := loadText(t, "all.yaml", strings.ReplaceAll(everything, "SUM", strings.Repeat("a", 64))).Config
	text, err := json.Marshal(redacted{want})
	if err != nil {
		t.Fatal(err)
	}
	got := loadText(t, "all.json", strings.Replace(string(text), `s3://bucket@region/`, `s3://bucket@region/?backingImage=x1`, 1)).Config
	for name, image := range want.Images {
		image.UUIDDeclared, image.Pos, image.Declaration = true, got.Images[name].Pos, got.Images[name].Declaration
		want.Images[name] = image
	}
	for name, node := range want.Nodes {
		node.Pos = got.Nodes[name].Pos
		want.Nodes[name] = node
	}
	for _, both := range [][2]any{{got.Settings, want.Settings}, {got.Nodes, want.Nodes}, {got.Images, want.Images}} {
		if !reflect.DeepEqual(both[0], both[1]) {
			t.Errorf("loaded again it is\n%+v\nwant\n%+v\nthe JSON was %s", both[0], both[1], text)
		}
	}
}

func TestPrintedConfigurationHasNoSecrets(t *testing.T) {
	c := loadText(t, "c.yaml", `images: {parrot: {source: {download: {
		url: "https://x.example/p?token=hunter2", mirrors: ["s3::https://y.example/bucket/p", "https://y.example/p?key=<hunter2>&b=hunter2"], checksumURL: "https://x.example/S?hunter2",
		index: "https://x.example/p.caibx?token=hunter2", store: "https://x.example/b/castr?token=hunter2"}}, checksum: "sha256:`+strings.Repeat("0", 64)+`"}}`).Config
	text, err := json.Marshal(redacted{c})
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("error %v; the JSON is %s", err, text)
	}
}
