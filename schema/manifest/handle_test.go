package manifest

import (
	"maps"
	"strings"
	"testing"
)

const bd79 = "bd79ab9e6d45abf4f3f0adf552a868074dd235c4698ce7258d521160e0ad79ffe555b94e7d4007add6e1a25f4526885eb25c53ce38f7d344dd4925b9f2cb5d3b"

func (h Handle) equal(g Handle) bool {
	return h.BackingImage == g.BackingImage && h.SourceType == g.SourceType && h.Checksum == g.Checksum && maps.Equal(h.Parameters, g.Parameters)
}

// TestHandleVectors parses and encodes handles. Those of Longhorn's own encoder, and those
// in its documents with the same order, are equal to ours.
func TestHandleVectors(t *testing.T) {
	for text, want := range map[string]Handle{
		"bi://backing?backingImage=test-bi&backingImageDataSourceType=export-from-volume&export-type=qcow2&volume-name=vol-export-src": {
			"test-bi", "export-from-volume", "", map[string]string{"export-type": "qcow2", "volume-name": "vol-export-src"}},
		"bi://backing?backingImage=test-bi&backingImageChecksum=" + bd79 + "&backingImageDataSourceType=download&url=https%3A%2F%2Flonghorn-backing-image.s3-us-west-1.amazonaws.com%2Fparrot.qcow2": {
			"test-bi", "download", bd79, map[string]string{"url": "https://longhorn-backing-image.s3-us-west-1.amazonaws.com/parrot.qcow2"}},
		"bi://backing?backingImage=a%26b%3Dc%20d%2Be%23f%25g%3Bh%2Fi&backingImageDataSourceType=export-from-volume&volume-name=%C3%A4%20%0A": {
			"a&b=c d+e#f%g;h/i", "export-from-volume", "", map[string]string{"volume-name": "ä \n"}},
		"bi://backing?backingImage=up&backingImageDataSourceType=upload":              {"up", "upload", "", nil},
		"bi://backing?backingImage=x&backingImageDataSourceType=download&k%3D=&url=u": {"x", "download", "", map[string]string{"url": "u", "k=": ""}},
	} {
		if got, err := ParseHandle(text); err != nil || !got.equal(want) {
			t.Errorf("%s\n is %+v, %v\nwant %+v", text, got, err, want)
		}
		if got, err := want.Encode(); err != nil || got != text {
			t.Errorf("%+v\n is %s, %v\nwant %s", want, got, err, text)
		}
	}
}

// TestHandleOtherSpellings parses other spellings of the same handle.
func TestHandleOtherSpellings(t *testing.T) {
	const want = "bi://backing?backingImage=b%20i&backingImageDataSourceType=download&url=https%3A%2F%2Fx.example%2Fa%3Fb%3Dc"
	for _, text := range []string{
		"bi://backing?backingImageDataSourceType=download&backingImage=b%20i&url=https%3A%2F%2Fx.example%2Fa%3Fb%3Dc",
		"bi://backing?backingImageDataSourceType=download&backingImage=b+i&url=https://x.example/a?b=c",
		"bi://anything/at/all?&&backingImage=b%20i&url=https%3a%2f%2fx.example%2fa%3fb=c&backingImageDataSourceType=download&",
		"bi://?backingImage=b i&backingImageDataSourceType=download&url=https://x.example/a?b%3dc&backingImageChecksum=",
	} {
		h, err := ParseHandle(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := h.Encode(); got != want || err != nil {
			t.Errorf("%s\n is %s, %v\nwant %s", text, got, err, want)
		}
	}
}

func TestParseHandleReportsMistakes(t *testing.T) {
	const form = " (write bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&…)"
	const escape = "has a % without two hex digits, or a ;, and Longhorn ignores that part (write %25 and %3B)"
	const control = "contains a line break, another control character, or bytes that are not UTF-8 (write it on one line)"
	const good = "bi://backing?backingImage=bi&backingImageDataSourceType=download&"
	for _, c := range []struct{ text, want string }{
		{"", "is not the handle of a backing image" + form},
		{"bi:backing", "is not the handle of a backing image" + form},
		{"bi", "is not the handle of a backing image" + form},
		{"://", "is not the handle of a backing image" + form},
		{"BI://backing?backingImage=bi", "is not the handle of a backing image" + form},
		{" bi://backing?backingImage=bi", "is not the handle of a backing image" + form},
		{"snap://v/s", "is the handle of a snapshot or backup of a volume, not of a backing image" + form},
		{"bak://v/b", "is the handle of a snapshot or backup of a volume, not of a backing image" + form},
		{"bs://v/b", "is the handle of a snapshot or backup of a volume, not of a backing image" + form},
		{"bi://", "backingImage is missing" + form + "\nbackingImageDataSourceType is missing" + form},
		{"bi://backing?", "backingImage is missing" + form + "\nbackingImageDataSourceType is missing" + form},
		{"bi://a b%?backingImage=bi", "is invalid before the ?" + form},
		{"bi://backing?&", "backingImage is missing" + form + "\nbackingImageDataSourceType is missing" + form},
		{"bi://backing?backingImage=bi", "backingImageDataSourceType is missing" + form},
		{"bi://backing?backingImageDataSourceType=download", "backingImage is missing" + form},
		{"bi://backing?backingImage&backingImageDataSourceType=", "backingImage is missing" + form + "\nbackingImageDataSourceType is missing" + form},
		{good + "url=a&url=a", "url is a duplicate (keep one of them)"},
		{good + "backingImage=other&url=a", "backingImage is a duplicate (keep one of them)"},
		{good + "url=https://x#y", "contains a #, and Longhorn ignores the text after it (write %23)"},
		{good + "url=50%", escape},
		{good + "url=%zz&url=a&url=b", escape + "\nurl is a duplicate (keep one of them)"},
		{good + "url=a;b", escape},
		{good + "url=%ff", "url is not UTF-8"},
		{good + "=x", "has an unreadable key (write a & in a value as %26)"},
		{good + "%=x", escape},
		{good + "\x1b[2J%=x", control},
		{good + "%1b[2J=&%1b[2J=", `"\x1b[2J" is a duplicate (keep one of them)`},
		{good + "url=\xff", control},
		{good + "url=a\nb", control},
		{"bi://backing?backingImage=%ff&backingImageDataSourceType=%", escape + "\nbackingImage is not UTF-8"},
		{good + "url=" + strings.Repeat("x", maxHandle), "is longer than 10000 bytes"},
	} {
		h, err := ParseHandle(c.text)
		want := "handle: " + strings.ReplaceAll(c.want, "\n", "\nhandle: ")
		if err == nil || err.Error() != want || !h.equal(Handle{}) {
			t.Errorf("%.200q\n is %+v and %v\nwant %s", c.text, h, err, want)
		}
	}
}

func TestHandleLengthLimit(t *testing.T) {
	h := Handle{BackingImage: "bi", SourceType: "download", Parameters: map[string]string{"url": ""}}
	shortest, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h.Parameters["url"] = strings.Repeat("x", maxHandle-len(shortest))
	text, err := h.Encode()
	if err != nil || len(text) != maxHandle {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if got, err := ParseHandle(text); err != nil || !got.equal(h) {
		t.Errorf("the longest handle: %v", err)
	}
	h.Parameters["url"] += "x"
	if text, err := h.Encode(); err == nil {
		t.Errorf("encoded %d bytes", len(text))
	}
}

func TestEncodeRejectsInvalidHandles(t *testing.T) {
	for want, h := range map[string]Handle{
		"encode handle: it needs backingImage and backingImageDataSourceType": {BackingImage: "x"},
		"encode handle: url is not UTF-8":                                     {"x", "download", "", map[string]string{"url": "\xff"}},
		"encode handle: backingImage is not UTF-8":                            {BackingImage: "\xff", SourceType: "upload"},
		`encode handle: "" is not a parameter of a source`:                    {"x", "download", "", map[string]string{"": "a"}},
		`encode handle: "backingImage" is not a parameter of a source`:        {"x", "download", "", map[string]string{"backingImage": "a"}},
	} {
		if text, err := h.Encode(); err == nil || err.Error() != want {
			t.Errorf("%+v\n is %q and %v\nwant %s", h, text, err, want)
		}
	}
}

// FuzzHandle: a handle that can be parsed can be encoded, and the result parses to the same
// handle. A handle that can be encoded can be parsed.
func FuzzHandle(f *testing.F) {
	f.Add("bi://backing?backingImageDataSourceType=export-from-volume&backingImage=test-bi&volume-name=vol-export-src&export-type=qcow2", "a&b", "c=d", "e f", "g+h", "i#j%")
	f.Add("bi://?backingImage=%26&backingImageDataSourceType=+&=&;&%zz", "", "\xff", "ä", "\n", "backingImage")
	f.Fuzz(func(t *testing.T, text, name, sourceType, checksum, key, value string) {
		h, err := ParseHandle(text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\n\x00\x1b") || len(line) > 500 {
					t.Errorf("a problem is not one short line: %q", line)
				}
			}
		} else {
			handleRoundTrip(t, h, len(text))
		}
		handleRoundTrip(t, Handle{name, sourceType, checksum, map[string]string{key: value}}, 0)
	})
}

func handleRoundTrip(t *testing.T, h Handle, length int) {
	text, err := h.Encode()
	if err != nil {
		if length > 0 && length < maxHandle/4 { // an escaped byte becomes three
			t.Errorf("%+v was parsed from %d bytes and cannot be encoded: %v", h, length, err)
		}
		return
	}
	if got, err := ParseHandle(text); err != nil || !got.equal(h) {
		t.Errorf("%+v\n is %s\nis %+v, %v", h, text, got, err)
	}
}
