//! Adds our plugin to the node's CNI configuration list, and removes it (CNI specification 1.1, section 1).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// The type of our plugin, which is also its program name.
pub(super) const PLUGIN_NAME: &str = "leno-cni";

/// Finds the list that the container runtime uses: the first configuration file by name.
///
/// # Errors
/// If there is no configuration yet, or the first one is not a list.
pub(super) fn find_active_list(directory: &Path) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let is_configuration = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conf" | "conflist" | "json"))
    };
    let files = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_configuration);
    let Some(first_file) = files.min() else {
        bail!("no network configuration in {} yet", directory.display());
    };
    match first_file.extension().is_some_and(|extension| extension == "conflist") {
        true => Ok(first_file),
        false => bail!(
            "{} configures a single plugin, and no other can be added: convert it to a .conflist",
            first_file.display()
        ),
    }
}

/// Finds all lists, because the active list may have changed since our plugin was added to it.
///
/// # Errors
/// If the directory cannot be read.
pub(super) fn find_all_lists(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let files = entries.filter_map(Result::ok).map(|entry| entry.path());
    let is_list =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "conflist");
    Ok(files.filter(is_list).collect())
}

/// Returns the list with our plugin last, configured as `plugin`; `None` if the list need not change.
///
/// # Errors
/// If the text is not a list of plugins.
pub(super) fn add_plugin(text: &str, plugin: &Value) -> anyhow::Result<Option<String>> {
    let mut conflist = parse_list(text)?;
    let plugins = plugins_mut(&mut conflist)?;
    if plugins.last() == Some(plugin)
        && plugins.iter().filter(|entry| is_leno_plugin(entry)).count() == 1
    {
        return Ok(None);
    }
    plugins.retain(|entry| !is_leno_plugin(entry));
    plugins.push(plugin.clone());
    Ok(Some(format!("{conflist:#}\n")))
}

/// Returns the list without our plugin; `None` if the plugin is absent.
///
/// # Errors
/// If the text is not a list of plugins.
pub(super) fn remove_plugin(text: &str) -> anyhow::Result<Option<String>> {
    let mut conflist = parse_list(text)?;
    let plugins = plugins_mut(&mut conflist)?;
    let previous_count = plugins.len();
    plugins.retain(|entry| !is_leno_plugin(entry));
    Ok((plugins.len() < previous_count).then(|| format!("{conflist:#}\n")))
}

/// Returns the entry of our plugin for a list.
pub(super) fn plugin_entry(socket: &Path, exclude_namespaces: &[String]) -> Value {
    json!({"type": PLUGIN_NAME, "socket": socket, "excludeNamespaces": exclude_namespaces})
}

fn parse_list(text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).context("the list of network plugins is not JSON")
}

/// Returns the plugins of a list, to change them.
fn plugins_mut(conflist: &mut Value) -> anyhow::Result<&mut Vec<Value>> {
    let plugins = conflist.get_mut("plugins").and_then(Value::as_array_mut);
    plugins.context("the list of network plugins has no `plugins`")
}

fn is_leno_plugin(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(PLUGIN_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp","mtu":1500}]}"#;

    #[test]
    fn the_plugin_is_added_last_only_once_and_can_be_removed() {
        let entry = plugin_entry(Path::new("/run/leno/cni.sock"), &["kube-system".to_owned()]);
        let extended = add_plugin(LIST, &entry).unwrap().unwrap();
        let conflist: Value = serde_json::from_str(&extended).unwrap();
        assert_eq!(conflist["plugins"][0]["mtu"], 1500);
        assert_eq!(conflist["plugins"][1], entry);
        assert_eq!(add_plugin(&extended, &entry).unwrap(), None);
        // A different socket, or a plugin after ours, is corrected.
        let moved_entry = plugin_entry(Path::new("/run/other.sock"), &[]);
        let conflist: Value =
            serde_json::from_str(&add_plugin(&extended, &moved_entry).unwrap().unwrap()).unwrap();
        assert_eq!(conflist["plugins"].as_array().map(Vec::len), Some(2));
        assert_eq!(conflist["plugins"][1], moved_entry);
        let restored: Value =
            serde_json::from_str(&remove_plugin(&extended).unwrap().unwrap()).unwrap();
        assert_eq!(restored, serde_json::from_str::<Value>(LIST).unwrap());
        assert_eq!(remove_plugin(LIST).unwrap(), None);
    }

    #[test]
    fn files_that_are_not_plugin_lists_are_rejected() {
        let entry = plugin_entry(Path::new("/s"), &[]);
        for invalid in ["", "{}", r#"{"plugins":{}}"#, "[]"] {
            assert!(
                add_plugin(invalid, &entry).is_err() && remove_plugin(invalid).is_err(),
                "{invalid}"
            );
        }
    }

    #[test]
    fn the_first_list_by_name_is_active() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(find_active_list(scratch.path()).unwrap_err().to_string().contains("no network"));
        for name in ["20-b.conflist", "10-a.conflist", "00-readme"] {
            std::fs::write(scratch.path().join(name), LIST).unwrap();
        }
        assert_eq!(find_active_list(scratch.path()).unwrap(), scratch.path().join("10-a.conflist"));
        std::fs::write(scratch.path().join("05-one.conf"), "{}").unwrap();
        assert!(
            find_active_list(scratch.path())
                .unwrap_err()
                .to_string()
                .contains("convert it to a .conflist")
        );
    }
}
