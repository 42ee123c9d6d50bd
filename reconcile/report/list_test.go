package report

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// exampleJSON is the status of a daemon. It has an image with two copies and an older generation, an
// image without a copy, one whose first copy is in progress, one whose declaration is invalid, and
// one that is not declared any more.
const exampleJSON = `{"images": [
 {"name":"parrot","uuid":"00000001","declared":false,"checksum":"","copies":[
  {"node":"node1","disk":"disk1","state":"ready","progress":100,"size":1024,"sha512":"SUM1","surplusSince":"2026-11-20T12:00:00Z"}]},
 {"name":"parrot","uuid":"6846a0b2","declared":true,"checksum":"sha256:SUM2","copies":[
  {"node":"node1","disk":"disk1","state":"failed","message":"no\nspace","size":0},
  {"node":"node1","disk":"disk2","state":"ready","progress":100,"size":2048,"virtualSize":1073741824,"sends":2,"sha512":"SUM3"}]},
 {"name":"desert","title":"The \u001b[2Jdesert","uuid":"00000002","declared":true,"copies":[]},
 {"name":"forest","uuid":"00000003","declared":true,"copies":[
  {"node":"node1","disk":"disk1","state":"in-progress","progress":40,"done":40,"total":100,"sender":"http://10.0.0.2:8000"},
  {"node":"node1","disk":"disk2","state":"pending","message":"the first copy is made on node1/disk1"}]},
 {"name":"broken","uuid":"","declared":false,"message":"its declaration is broken","copies":[]},
 {"name":"gone","uuid":"00000004","declared":false,"copies":[
  {"node":"node1","disk":"disk2","state":"unknown","message":"not verified yet","size":512,"sha512":"SUM1"}]}
]}`

func exampleStatus(t *testing.T) status.Status {
	t.Helper()
	sums := strings.NewReplacer("SUM1", strings.Repeat("1", 128), "SUM2", strings.Repeat("2", 64), "SUM3", strings.Repeat("3", 128))
	var s status.Status
	if err := json.Unmarshal([]byte(sums.Replace(exampleJSON)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestListHasTheJSONOfLonghorn(t *testing.T) {
	list := List(exampleStatus(t).Images, nil)
	for name, want := range map[string]string{
		"parrot": `{"name":"parrot","uuid":"6846a0b2","size":2048,"virtualSize":1073741824,"expectedChecksum":"sha256:` + strings.Repeat("2", 64) + `",` +
			`"status":{"state":"ready","currentChecksum":"` + strings.Repeat("3", 128) + `","sendingReference":2,"errorMsg":"","senderManagerAddress":"","progress":100},` +
			`"disk":"node1/disk2","generations":[` +
			`{"name":"parrot","uuid":"00000001","size":1024,"virtualSize":0,"expectedChecksum":"",` +
			`"status":{"state":"ready","currentChecksum":"` + strings.Repeat("1", 128) + `","sendingReference":0,"errorMsg":"","senderManagerAddress":"","progress":100},` +
			`"disk":"node1/disk1"}]}`,
		"desert": `{"name":"desert","uuid":"00000002","title":"The �[2Jdesert","size":0,"virtualSize":0,"expectedChecksum":"",` +
			`"status":{"state":"pending","currentChecksum":"","sendingReference":0,"errorMsg":"","senderManagerAddress":"","progress":0},"disk":""}`,
		"forest": `{"name":"forest","uuid":"00000003","size":100,"virtualSize":0,"expectedChecksum":"",` +
			`"status":{"state":"in-progress","currentChecksum":"","sendingReference":0,"errorMsg":"","senderManagerAddress":"http://10.0.0.2:8000","progress":40},"disk":"node1/disk1"}`,
		"broken": `{"name":"broken","uuid":"","size":0,"virtualSize":0,"expectedChecksum":"",` +
			`"status":{"state":"pending","currentChecksum":"","sendingReference":0,"errorMsg":"its declaration is broken","senderManagerAddress":"","progress":0},"disk":""}`,
		"gone": `{"name":"gone","uuid":"00000004","size":512,"virtualSize":0,"expectedChecksum":"",` +
			`"status":{"state":"unknown","currentChecksum":"","sendingReference":0,"errorMsg":"not verified yet","senderManagerAddress":"","progress":0},"disk":"node1/disk2"}`,
	} {
		got, err := json.Marshal(list[name])
		if err != nil || string(got) != want {
			t.Errorf("%s (error %v):\n got %s\nwant %s", name, err, got, want)
		}
	}
	if len(list) != 5 {
		t.Errorf("the list has %d images, want 5", len(list))
	}
}

func TestListOfOneDisk(t *testing.T) {
	list := List(exampleStatus(t).Images, []string{"node1/disk1"})
	if got := strings.Join(ListTable(list), "\n") + "\n"; got != `NAME    UUID      STATE        PROGRESS  SIZE     VIRTUAL  DISK         MESSAGE
forest  00000003  in-progress  40%       100 B    -        node1/disk1
parrot  6846a0b2  failed       0%        -        -        node1/disk1  no; space
parrot  00000001  ready        100%      1.0 KiB  -        node1/disk1
` {
		t.Errorf("the list of one disk is:\n%s", got)
	}
}

// Without a declaration, a generation that is not surplus precedes a surplus one in any state.
// Otherwise the state of the best copy decides.
func TestListShowsTheBestGeneration(t *testing.T) {
	generation := func(uuid, state string, surplusSince time.Time) status.ImageStatus {
		var c status.CopyStatus
		if err := json.Unmarshal([]byte(`{"disk":"/d","state":"`+state+`"}`), &c); err != nil {
			t.Fatal(err)
		}
		c.SurplusSince = surplusSince
		return status.ImageStatus{Name: "parrot", UUID: uuid, Copies: []status.CopyStatus{c}}
	}
	then := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		images []status.ImageStatus
		want   string
	}{
		{[]status.ImageStatus{generation("00000001", "ready", then), generation("00000002", "in-progress", time.Time{})}, "00000002"},
		{[]status.ImageStatus{generation("00000001", "failed", time.Time{}), generation("00000002", "ready", time.Time{})}, "00000002"},
		{[]status.ImageStatus{generation("00000002", "ready", time.Time{}), generation("00000001", "ready", time.Time{})}, "00000001"},
	} {
		if got := List(c.images, nil)["parrot"]; got.UUID != c.want || len(got.Generations) != 1 {
			t.Errorf("%+v: the entry is that of %s, want %s", c.images, got.UUID, c.want)
		}
	}
}

func TestEntryIsFoundByNameOrGeneration(t *testing.T) {
	images := exampleStatus(t).Images
	for name, want := range map[string]string{
		"parrot": "6846a0b2", "parrot-6846a0b2": "6846a0b2", "parrot-00000001": "00000001",
		"nest": "no image nest: the images are broken, desert, forest, gone, parrot",
	} {
		got, err := Entry(images, name, nil)
		if err != nil && err.Error() != want || err == nil && got.UUID != want {
			t.Errorf("%s: got %q and error %v, want %s", name, got.UUID, err, want)
		}
	}
}

func TestListOmitsPendingCopiesOfOtherNodes(t *testing.T) {
	var s status.Status
	if err := json.Unmarshal([]byte(`{"node": "node1", "images": [{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
		{"node":"node1","disk":"disk1","state":"pending"},
		{"node":"node2","disk":"disk1","state":"pending"},
		{"node":"node2","disk":"disk2","state":"pending","rejection":"full","observed":{"state":"pending"}},
		{"node":"node3","disk":"disk1","state":"starting","running":true},
		{"node":"node3","disk":"disk2","state":"failed","observed":{"state":"pending"},"partBytes":1},
		{"node":"node3","disk":"disk3","state":"ready","observed":{"state":"ready"}}]}]}`), &s); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range VisibleImages(s)[0].Copies {
		got = append(got, c.DiskName())
	}
	if want := "node1/disk1 node3/disk1 node3/disk2 node3/disk3"; strings.Join(got, " ") != want {
		t.Errorf("copies on %v are listed, want %s", got, want)
	}
}
