package fetch

import (
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/fetchtest"
)

func TestMirrors(t *testing.T) {
	type fault = fetchtest.Fault
	away := fault{Kind: fetchtest.NotFound}
	tests := []struct {
		name     string
		url      []fault
		mirror   []fault
		declared bool
		class    Class
		words    []string
		ranges   []string // of all requests but the first
	}{
		{name: "first one works"},
		{name: "first one is away", url: []fault{away}, ranges: []string{""}},
		{name: "resumed across by digest", url: []fault{cutOnce, gone}, declared: true, ranges: []string{"bytes=2097252-", "bytes=2097252-"}},
		{name: "not joined without a digest", url: []fault{cutOnce, gone, {Kind: fetchtest.NoValidator}}, ranges: []string{"", ""}},
		{name: "asked by a strong ETag without a digest", url: []fault{cutOnce, gone}, ranges: []string{"bytes=2097252-", "bytes=2097252-"}},
		{name: "wrong kind of file", url: []fault{{Kind: fetchtest.Gzip}}, declared: true, ranges: []string{""}},
		{name: "no image at the first one", url: []fault{{Kind: fetchtest.Page}}, ranges: []string{""}},
		{name: "not joined to what a wrong answer left", url: []fault{cutOnce, {Kind: fetchtest.Gzip, Skip: 1}}, declared: true,
			ranges: []string{"bytes=2097252-", ""}},
		{name: "both away", url: []fault{away}, mirror: []fault{{Kind: fetchtest.Unavailable}},
			class: Network, words: []string{"image.raw: the server answers 404", "mirror.raw: the server answers 503"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			req := Request{
				URL:     r.server.Serve("/image.raw", fetchtest.Bytes(image), tt.url...),
				Mirrors: []string{r.server.Serve("/mirror.raw", fetchtest.Bytes(image), tt.mirror...)},
			}
			if tt.declared {
				req.Digest = digest(image)
			}
			err := r.download(req)
			if tt.class != 0 {
				failed(t, err, tt.class, tt.words...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.stored(image)
			if got := r.ranges()[1:]; !slices.Equal(got, tt.ranges) {
				t.Errorf("got ranges %q after the first request, want %q", got, tt.ranges)
			}
		})
	}
}
