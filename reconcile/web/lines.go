package web

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// linesModel is a form for one change of the configuration, and the lines to commit for it. The page never writes them.
type linesModel struct {
	Kind     string
	Values   map[string]string
	Images   []string // declared
	Places   []string // declared nodes, and disks as NODE/DISK
	Prunable []string // the orphans that the prune limit holds back
	NoNodes  bool     // no nodes are declared: the command line names the disks
	Lines    string   // "": the form is incomplete, or has problems
	Where    string   // what to do with the lines
	File     string   // the file with the declaration; "": a new file
	Edit     string   // the address at which File can be edited; "": unknown
	Problems []string
}

// createImage is the kind of change whose form is shown first.
const createImage = "create"

// changes has, by kind, the values in each form and the method that writes the lines.
var changes = map[string]struct {
	values []string
	lines  func(*linesModel, schema.Config)
}{
	createImage: {[]string{"name", "source", "url", "checksum", "copies"}, (*linesModel).create},
	"checksum":  {[]string{"image", "checksum", "url"}, (*linesModel).changeChecksum},
	"drain":     {[]string{"place"}, (*linesModel).drain},
	"suspend":   {[]string{"image", "reason", "by", "until"}, (*linesModel).suspend},
	"prune":     {[]string{"confirm"}, (*linesModel).confirmPrune},
}

const maxValue = 2000

func newLines(s *snapshot, of request) (any, int) {
	config, values := s.view.Desired.Config, of.values
	m := linesModel{Kind: values.Get("kind"), Values: map[string]string{}, Images: slices.Sorted(maps.Keys(config.Images)), Prunable: prunable(s)}
	change, known := changes[m.Kind]
	if !known {
		m.Kind, change = createImage, changes[createImage]
	}
	for _, name := range change.values {
		text := text.Line(strings.TrimSpace(values.Get(name)))
		if len(text) > maxValue {
			text = ""
		}
		m.Values[name] = text
	}
	for _, name := range slices.Sorted(maps.Keys(config.Nodes)) {
		node := config.Nodes[name]
		m.Places = append(m.Places, name)
		for _, d := range slices.Sorted(maps.Keys(node.Disks)) {
			m.Places = append(m.Places, ident.DiskRef{Node: name, Disk: d}.String())
		}
	}
	m.NoNodes = len(m.Places) == 0
	change.lines(&m, config)
	if edit := config.Settings.Web.EditURL; edit != "" && m.File != "" && m.Lines != "" {
		m.Edit = strings.ReplaceAll(edit, "{file}", inQuery.Replace((&url.URL{Path: m.File}).EscapedPath()))
	}
	return m, http.StatusOK
}

// inQuery escapes the characters that a path may contain and the value of a parameter may not.
var inQuery = strings.NewReplacer("&", "%26", "=", "%3D", "+", "%2B")

// object is a mapping in the lines.
type object map[string]any

func (o object) encode() []byte {
	text, err := yaml.Marshal(o)
	if err != nil {
		panic("web: encode lines: " + err.Error()) // they consist of texts and numbers
	}
	return text
}

// write sets the lines.
func (m *linesModel) write(o object, where, file string) {
	m.Lines, m.Where, m.File = string(o.encode()), where, file
}

// writeChange sets the lines for a change of a declared image.
func (m *linesModel) writeChange(config schema.Config, image schema.Image, change object) {
	m.write(object{"images": object{image.ID.Name: change}},
		fmt.Sprintf("Change the declaration in %s, line %d, so that it has these values. In a manifest, the fields have other names.", image.Pos.File, image.Pos.Line), image.Pos.File)
	whole := object{"source": object{"upload": object{}}} // a valid image, whose source the change may replace
	maps.Copy(whole, change)
	m.check(config, object{"images": object{image.ID.Name: whole}})
}

// check validates o as a whole configuration, and sets the problems. If there is a problem, it removes the lines. It adds the
// setting on which valid addresses depend.
func (m *linesModel) check(config schema.Config, o object) {
	files := []configdir.File{{Path: "lines.yaml", Data: o.encode()}}
	if config.Settings.AllowLoopbackSources {
		files = append(files, configdir.File{Path: "settings.yaml", Data: []byte("settings: {allowLoopbackSources: true}\n")})
	}
	// The load takes milliseconds, and all readers get the result: the end of one request must not interrupt it.
	r := load.NewLoader().Load(context.Background(), configdir.Snapshot{Files: files})
	for _, p := range r.Errors {
		m.Problems = append(m.Problems, p.String())
	}
	if len(m.Problems) > 0 {
		m.Lines = ""
	}
}

func (m *linesModel) create(config schema.Config) {
	name, source := m.Values["name"], object{}
	switch {
	case name == "":
		return
	case m.Values["source"] == "upload":
		source["upload"] = object{}
	case m.Values["url"] == "":
		m.Problems = []string{"an address is required, unless the source is an upload"}
		return
	default:
		source["download"] = object{"url": m.Values["url"]}
	}
	image := object{"source": source}
	if m.Values["checksum"] != "" {
		image["checksum"] = m.Values["checksum"]
	}
	switch n, err := strconv.Atoi(m.Values["copies"]); {
	case m.Values["copies"] == "":
	case err == nil:
		image["minNumberOfCopies"] = n
	default:
		image["minNumberOfCopies"] = m.Values["copies"]
	}
	if slices.Contains(m.Images, name) {
		m.Problems = []string{fmt.Sprintf("an image %s is declared already", name)}
		return
	}
	lines := object{"images": object{name: image}}
	m.write(lines, "Commit these lines as a new file "+name+".yaml of the config directory.", "")
	m.check(config, lines)
}

func (m *linesModel) changeChecksum(config schema.Config) {
	image, declared := config.Images[m.Values["image"]]
	if !declared || m.Values["checksum"] == "" {
		return
	}
	change := object{"checksum": m.Values["checksum"]}
	if m.Values["url"] != "" {
		change["source"] = object{"download": object{"url": m.Values["url"]}}
	}
	m.writeChange(config, image, change)
}

func (m *linesModel) drain(config schema.Config) {
	node, name, isDisk := strings.Cut(m.Values["place"], "/")
	declared, ok := config.Nodes[node]
	if _, known := declared.Disks[name]; !ok || isDisk && !known {
		return
	}
	change := object{"evictionRequested": true}
	if isDisk {
		change = object{"disks": object{name: change}}
	}
	m.write(object{"nodes": object{node: change}},
		fmt.Sprintf("Add evictionRequested to the declaration of the node in %s, line %d. Its copies move to other disks. The old copies are deleted when that is safe.", declared.Pos.File, declared.Pos.Line), declared.Pos.File)
}

func (m *linesModel) suspend(config schema.Config) {
	if m.Values["reason"] == "" {
		return
	}
	by := object{"reason": m.Values["reason"]}
	for _, name := range []string{"by", "until"} {
		if m.Values[name] != "" {
			by[name] = m.Values[name]
		}
	}
	image, declared := config.Images[m.Values["image"]]
	switch {
	case declared:
		m.writeChange(config, image, object{"suspend": by})
	case m.Values["image"] == "":
		lines := object{"settings": object{"suspend": by}}
		m.write(lines, "Add this to the settings, in the file that has them or in a new one. Nothing starts and nothing is deleted while it holds.", "")
		m.check(config, lines)
	}
}

func (m *linesModel) confirmPrune(config schema.Config) {
	if m.Values["confirm"] == "" || len(m.Prunable) == 0 {
		return
	}
	all := slices.Clone(m.Prunable)
	for _, id := range config.Settings.PruneConfirmed {
		if !slices.Contains(all, id.String()) {
			all = append(all, id.String())
		}
	}
	slices.Sort(all)
	m.write(object{"settings": object{"pruneConfirmed": all}},
		"Set this in the settings, in the file that has them or in a new one. The copies of these images are then deleted after their clean-up interval.", "")
}

// prunable returns the orphans that the prune limit holds back on this node.
func prunable(s *snapshot) []string {
	var all []string
	for _, a := range s.doc.Plan.Actions {
		if id := a.CopyRef().ID.String(); a.Code == plan.CodePruneLimit && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}
