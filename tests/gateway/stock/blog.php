<?php
// A blog as many are: PHP prints the feed, and tells the hub with nothing but what PHP brings along.
//   php -S 127.0.0.1:8000 blog.php      serves it at /feed; a POST there adds an entry and pings
$hub = getenv('HUB');
$entries = getenv('ENTRIES');
$topic = "http://{$_SERVER['HTTP_HOST']}/feed";
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    file_put_contents($entries, file_get_contents('php://input') . "\n", FILE_APPEND);
    $options = ['http' => [
        'method' => 'POST',
        'header' => 'Content-Type: application/x-www-form-urlencoded',
        'content' => http_build_query(['hub.mode' => 'publish', 'hub.url' => $topic]),
        'ignore_errors' => true,
    ]];
    file_get_contents($hub, false, stream_context_create($options));
    echo $http_response_header[0];
    return;
}
header('Content-Type: application/rss+xml; charset=UTF-8');
header("Link: <$hub>; rel=\"hub\", <$topic>; rel=\"self\"");
echo "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<rss version=\"2.0\"><channel><title>PHP</title><link>http://a.example/</link>";
foreach (array_reverse(is_file($entries) ? file($entries, FILE_IGNORE_NEW_LINES) : []) as $entry) {
    echo '<item><title>' . htmlspecialchars($entry) . '</title><guid>' . md5($entry) . '</guid></item>';
}
echo '</channel></rss>';
