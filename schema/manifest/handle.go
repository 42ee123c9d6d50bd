package manifest

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Handle is a CSI snapshotHandle of a backing image, in the words of Longhorn:
//
//	bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&KEY=VALUE…
//
// The values are escaped as in the query of an address, where "+" is a space.
type Handle struct {
	BackingImage string `json:"backingImage"`                   // never empty
	SourceType   string `json:"backingImageDataSourceType"`     // such as "download" or "export-from-volume"; never empty
	Checksum     string `json:"backingImageChecksum,omitempty"` // "" if it has none
	// Parameters are the parameters of the source, such as "url", or "volume-name" and "export-type".
	Parameters map[string]string `json:"parameters"`
}

// The keys of a handle that are not parameters of the source.
const (
	handleImage    = "backingImage"
	handleType     = "backingImageDataSourceType"
	handleChecksum = "backingImageChecksum"
)

const handlePrefix = "bi://"

const handleHint = "write bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&…"

// maxHandle limits the bytes of an escaped handle.
const maxHandle = 10_000

// ParseHandle reads a handle. It accepts every handle that Longhorn reads without losing a
// part of it. What Longhorn ignores silently is an error: an invalid escape, a duplicate
// key, all text after a "#". The error has one line for each mistake. No line shows
// a value: it may contain a token.
//
// ParseHandle does not check the values. The check of the configuration does.
func ParseHandle(text string) (Handle, error) {
	h, problems := parseHandle(text)
	if len(problems) > 0 {
		h = Handle{}
	}
	return h, joinProblems(problems)
}

// joinProblems returns an error with a line for each problem.
func joinProblems(problems []document.Problem) error {
	errs := make([]error, 0, len(problems))
	for _, p := range problems {
		if len(p.Path) == 0 {
			p.Path = document.Path{"handle"}
		}
		errs = append(errs, errors.New(p.String()))
	}
	return errors.Join(errs...)
}

// parseHandle returns the readable parts of a handle, and the problems of the rest.
func parseHandle(text string) (Handle, []document.Problem) {
	rest, isImage := strings.CutPrefix(text, handlePrefix)
	authority, query, _ := strings.Cut(rest, "?")
	_, authorityErr := url.Parse(handlePrefix + authority)
	whole := document.Problem{Hint: handleHint}
	switch {
	case len(text) > maxHandle:
		whole.Message, whole.Hint = fmt.Sprintf("is longer than %d bytes", maxHandle), ""
	case isVolumeHandle(text):
		whole.Message = "is the handle of a snapshot or backup of a volume, not of a backing image"
	case !isImage:
		whole.Message = "is not the handle of a backing image"
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		whole.Message, whole.Hint = "contains a line break, another control character, or bytes that are not UTF-8", "write it on one line"
	case strings.Contains(text, "#"):
		whole.Message, whole.Hint = "contains a #, and Longhorn ignores the text after it", "write %23"
	case authorityErr != nil:
		whole.Message = "is invalid before the ?"
	default:
		return parseHandleValues(query)
	}
	return Handle{}, []document.Problem{whole}
}

// parseHandleValues reads the keys and values of a handle: the text after the "?".
func parseHandleValues(query string) (h Handle, problems []document.Problem) {
	report := func(message, hint string) {
		problems = append(problems, document.Problem{Message: message, Hint: hint})
	}
	values, err := url.ParseQuery(query) // also after an error it has what can be read
	if err != nil {
		report("has a % without two hex digits, or a ;, and Longhorn ignores that part", "write %25 and %3B")
	}
	h.Parameters = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if len(values[key]) > 1 {
			report(shownKey(key)+" is a duplicate", "keep one of them")
		}
		switch value := values.Get(key); {
		case key == "" || !utf8.ValidString(key):
			report("has an unreadable key", "write a & in a value as %26")
		case !utf8.ValidString(value):
			report(shownKey(key)+" is not UTF-8", "")
		case key == handleImage:
			h.BackingImage = value
		case key == handleType:
			h.SourceType = value
		case key == handleChecksum:
			h.Checksum = value
		default:
			h.Parameters[key] = value
		}
	}
	for _, key := range []string{handleImage, handleType} {
		if values.Get(key) == "" && err == nil {
			report(key+" is missing", handleHint)
		}
	}
	return h, problems
}

// isVolumeHandle reports whether a handle is one of Longhorn's handles of volumes.
func isVolumeHandle(handle string) bool {
	return strings.HasPrefix(handle, "snap://") || strings.HasPrefix(handle, "bak://") || strings.HasPrefix(handle, "bs://")
}

var plainKey = regexp.MustCompile(`^[\w.,%/+-]{1,48}$`)

// shownKey returns a key for a message.
func shownKey(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return fmt.Sprintf("%.40q", key)
}

// Encode writes the handle so that ParseHandle and Longhorn read the same values. Its keys
// have the order of Longhorn's own handles. So the text is that of Longhorn if no character
// must be escaped: unlike Longhorn, Encode escapes. Encode fails if the handle is
// invalid: without a name or a type, not UTF-8, or too long.
func (h Handle) Encode() (string, error) {
	values := url.Values{}
	for key, value := range h.Parameters {
		if key == "" || key == handleImage || key == handleType || key == handleChecksum {
			return "", fmt.Errorf("encode handle: %q is not a parameter of a source", key)
		}
		values.Set(key, value)
	}
	values.Set(handleImage, h.BackingImage)
	values.Set(handleType, h.SourceType)
	if h.Checksum != "" {
		values.Set(handleChecksum, h.Checksum)
	}
	for key, value := range values {
		if !utf8.ValidString(key) || !utf8.ValidString(value[0]) {
			return "", fmt.Errorf("encode handle: %s is not UTF-8", shownKey(key))
		}
	}
	if h.BackingImage == "" || h.SourceType == "" {
		return "", fmt.Errorf("encode handle: it needs %s and %s", handleImage, handleType)
	}
	// url.Values writes a space as "+". %20 is right for readers that do not know that this
	// is a query, too.
	text := handlePrefix + "backing?" + strings.ReplaceAll(values.Encode(), "+", "%20")
	if len(text) > maxHandle {
		return "", fmt.Errorf("encode handle: it would be longer than %d bytes", maxHandle)
	}
	return text, nil
}

// Check returns why the handle is invalid in every configuration. The error has a line for
// each mistake.
func (h Handle) Check() error {
	problems := h.problems()
	if err := ident.CheckName(LonghornName(h.BackingImage)); err != nil {
		problems = append(problems, document.Problem{Path: document.Path{handleImage}, Message: err.Error()})
	}
	return joinProblems(problems)
}

// Declares reports whether the handle declares its image if no other document
// does. Other handles refer to an image that exists.
func (h Handle) Declares() bool {
	return len(h.Parameters) > 0 && (h.SourceType == download || h.SourceType == exportFromVolume)
}

// problems returns the mistakes in the type and the names of the parameters, with their paths
// in the handle. The check of the configuration finds the mistakes in the values.
func (h Handle) problems() []document.Problem {
	s, ok := findSourceType(h.SourceType)
	if !ok {
		var names []string
		for _, s := range sourceTypes {
			names = append(names, s.name)
		}
		return []document.Problem{{Path: document.Path{handleType}, Message: "unknown type of source " + shownKey(h.SourceType), Hint: document.DidYouMean(h.SourceType, names)}}
	}
	var all []document.Problem
	for _, name := range slices.Sorted(maps.Keys(h.Parameters)) {
		at := document.Path{handleParameters, name}
		switch {
		case name == "checksum":
			all = append(all, document.Problem{Path: at, Message: "is not a parameter of a source: no image has it", Hint: "write " + handleChecksum})
		case !s.has(name):
			all = append(all, document.Problem{Path: at, Message: "is not a parameter of " + h.SourceType, Hint: s.knownParameters() + "; write a & in a value as %26"})
		case strings.Contains(h.Parameters[name], " "):
			all = append(all, document.Problem{Path: at, Message: "contains a space", Hint: "a + is a space in a handle: write %2B"})
		}
	}
	return all
}

// handleParameters is the field for the parameters of the source in the mapping of a
// handle.
const handleParameters = "parameters"

// value returns the handle as a mapping. All of its values have the same position.
func (h Handle) value(pos document.Position) *document.Value {
	mapping := func(texts map[string]string) *document.Value {
		v := &document.Value{Kind: document.Map, Pos: pos}
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			v.Fields = append(v.Fields, document.Field{Name: name, Pos: pos, Value: textValue(texts[name], pos)})
		}
		return v
	}
	v := mapping(map[string]string{handleImage: h.BackingImage, handleType: h.SourceType, handleChecksum: h.Checksum})
	if len(h.Parameters) > 0 {
		v.Fields = append(v.Fields, document.Field{Name: handleParameters, Pos: pos, Value: mapping(h.Parameters)})
	}
	return v
}
