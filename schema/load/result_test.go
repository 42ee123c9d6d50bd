package load

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

func TestOriginsOfNativeFormAndManifest(t *testing.T) {
	r := load(t, `settings: {minNumberOfCopies: 2}
images: {parrot: {source: {download: {url: "https://example.com/x", mirrors: []}}, diskSelector: [ssd, fast]}}
---
apiVersion: longhorn.io/v1beta2
kind: BackingImage
metadata: {name: Robin}
spec: {sourceType: upload, minNumberOfCopies: 1}
status: {uuid: "00000001"}
`)
	var b strings.Builder
	for _, o := range r.Origins() {
		fmt.Fprintln(&b, o.Position, o.Section, o.Name, o.Kind)
		for _, v := range o.Values {
			fmt.Fprintln(&b, " ", v.Position, v.Path, v.From)
		}
	}
	const want = `config.yaml:2:10 images parrot 
  config.yaml:2:99 diskSelector[0] 
  config.yaml:2:104 diskSelector[1] 
  config.yaml:2:78 source.download.mirrors 
  config.yaml:2:44 source.download.url 
config.yaml:6:18 images robin BackingImage
  config.yaml:7:47 minNumberOfCopies spec.minNumberOfCopies
  config.yaml:7:20 source.upload spec.sourceType
  config.yaml:8:16 uuid status.uuid
config.yaml:1:12 settings minNumberOfCopies 
  config.yaml:1:31 minNumberOfCopies 
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestOriginsFollowMovedLines(t *testing.T) {
	const text = "{apiVersion: longhorn.io/v1beta2, kind: BackingImage, metadata: {name: robin}, spec: {sourceType: upload}}\n"
	l := NewLoader()
	for line, before := range []string{"", "\n", "\n\n"} {
		r := l.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(before + text)}}})
		if got := r.Origins()[0].Values[0].Line; got != line+1 {
			t.Errorf("after %q, the value is at line %d, want %d", before, got, line+1)
		}
	}
}
